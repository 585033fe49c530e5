"""What the literature says of ring attention's costs, each statement a test: reproduced, or made general."""

import numpy as np
import pytest

from ringmpi import Mask
from ringmpi.core.shapes import HeadShape
from ringmpi.planner.backward import backward_bytes, backward_hop
from ringmpi.planner.balance import imbalance, rank_loads, read_pass
from ringmpi.planner.machines import MACHINES, Rates
from ringmpi.planner.memory import KVCache, kv_cache, score_bytes
from ringmpi.planner.plan import make_plan
from ringmpi.planner.roofline import critical_block_length
from ringmpi.planner.trace import trace
from tests.planner.problems import BFLOAT16, problem

PUBLISHED = [(600e12, 450e9, 1_334, 4_096), (600e12, 50e9, 12_000, 16_384), (312e12, 12.5e9, 24_960, 32_768)]


@pytest.mark.parametrize(("flops", "bandwidth", "tokens", "block"), PUBLISHED)
def test_a_hop_is_hidden_from_f_over_b_tokens_on(flops, bandwidth, tokens, block):
    rates = Rates(flops, bandwidth, "")
    assert np.ceil(critical_block_length(rates)) == tokens
    for length, hidden in ((block, True), (tokens, True), (tokens - 1, False)):
        times = make_plan(problem(4 * length, 4, mask=Mask.full()), rates).times
        assert bool(times.exposed.any()) is not hidden


@pytest.mark.parametrize(("flops", "bandwidth", "tokens", "block"), PUBLISHED)
def test_a_plan_exposes_nothing_at_the_published_block_lengths(flops, bandwidth, tokens, block):
    for length, hidden in ((block, True), (tokens // 2, False)):
        plan = make_plan(problem(4 * length, 4, mask=Mask.full()), Rates(flops, bandwidth, ""))
        assert plan.critical_block_length == pytest.approx(flops / bandwidth)
        assert bool(plan.times.exposed.any()) is not hidden
        if hidden:
            assert plan.times.total == pytest.approx(plan.flops / 4 / flops)


def test_989_teraflops_over_100_gigabytes_need_9890_tokens():
    assert critical_block_length(Rates(989e12, 100e9, "")) == pytest.approx(9_890)


def test_nine_query_heads_on_three_key_heads_in_float32_under_a_causal_mask():
    """bytes / 2 = 2, a third of the key heads, half of the pairs: 4/3 of F / B, since zigzag meets half a block."""
    rates = Rates(600e12, 450e9, "")
    length = critical_block_length(rates, itemsize=4, query_heads=9, key_heads=3, density=0.5)
    assert length == pytest.approx(4 / 3 * 600e12 / 450e9)
    contiguous = make_plan(problem(9_000, 3, heads=(9, 3, 64), dtype=np.float32), rates)
    assert contiguous.tables.density == 1  # what travels is seen in full, or does not travel
    assert contiguous.critical_block_length == pytest.approx(2 / 3 * 600e12 / 450e9)


@pytest.mark.parametrize("sharding", ["contiguous", "zigzag", "striped", "balanced"])
@pytest.mark.parametrize("schedule", ["ring", "bidirectional", "all-gather", "broadcast"])
def test_flops_of_all_ranks_are_pairs_times_4d_for_every_rank_count(sharding, schedule):
    expected = 4 * 64 * 2 * (1000 * 1001 // 2)
    for ranks in (1, 2, 3, 4, 8):
        plan = make_plan(problem(1000, ranks, sharding=sharding, schedule=schedule, heads=(2, 1, 64)))
        assert plan.flops == expected
        assert plan.tables.pairs.sum() * plan.flops_a_pair == expected


def test_a_rank_sends_its_shard_p_minus_1_times_and_no_query_travels():
    plan = make_plan(problem(8_000, 8, mask=Mask.full(), heads=(4, 2, 64)))
    assert (plan.tables.bytes_sent == 7 * 1000 * 2 * 2 * 64 * 2).all()


@pytest.mark.parametrize("ranks", [2, 4, 8, 64])
def test_contiguous_causal_keeps_the_last_rank_busy_twice_as_long_as_the_mean(ranks):
    tables = read_pass(problem(ranks * 1000, ranks))
    assert tables.imbalance == pytest.approx(2 - 1 / ranks, rel=1e-3)


def test_zigzag_is_exactly_balanced_where_2p_divides_the_length():
    assert read_pass(problem(800, 4, sharding="zigzag")).imbalance == 1
    assert read_pass(problem(698, 4, sharding="zigzag")).imbalance == pytest.approx(1.007, abs=5e-4)
    assert 1 < read_pass(problem(800, 4, sharding="striped")).imbalance < 1.01


@pytest.mark.parametrize("load", [1, 10**9 + 7, 7 * 10**16 + 3, 2**62 - 1])
@pytest.mark.parametrize("ranks", [1, 3, 7, 4096])
def test_equal_loads_are_exactly_balanced_however_large(ranks, load):
    assert imbalance(np.full(ranks, load)) == 1


def test_no_load_is_balanced():
    assert imbalance(np.zeros(3, np.int64)) == 1


def test_the_trace_says_whole_percents():
    lines = trace(make_plan(problem(1000, 7, mask=Mask.window(99, 0), sharding="zigzag")), 3)
    assert lines[2] == "step 2: ranks 0-1 idle, ranks 2-6 2 %"


def test_the_trace_of_400000_tokens_on_4_ranks():
    plan = make_plan(problem(400_000, 4))
    assert trace(plan, 8) == [
        "step 0: ranks 0-3 diagonal (50 %)",
        "step 1: rank 0 idle, ranks 1-3 full",
        "step 2: ranks 0-1 idle, ranks 2-3 full",
        "step 3: ranks 0-2 idle, rank 3 full",
    ]


def test_memory_of_a_rank_is_an_eighth_on_8_ranks_and_flat_when_context_and_ring_double():
    def peak(length, ranks):
        return make_plan(problem(length, ranks, mask=Mask.full())).memory.peak

    assert peak(64_000, 16) == peak(128_000, 32)
    assert peak(64_000, 16) == pytest.approx(peak(64_000, 2) / 8)


def test_scores_of_a_million_tokens_would_take_2_terabytes():
    assert score_bytes(problem(10**6, 8)) == 2 * 10**12


def test_the_kv_cache_of_llama_2_7b():
    cache = kv_cache(problem(10**6, 1, heads=(32, 32, 128)), layers=32)
    assert cache.token_bytes == 524_288
    assert cache.total == 524_288 * 10**6
    assert cache.tokens_in(80e9) == 152_587


def test_100000_tokens_at_400_kilobytes_are_8_gigabytes_on_each_of_5_ranks():
    cache = KVCache(token_bytes=400_000, tokens=100_000, ranks=5)
    assert (cache.total, cache.share, 24 * 10**9 - cache.share) == (40 * 10**9, 8 * 10**9, 16 * 10**9)


@pytest.mark.parametrize(("dtype", "keys", "queries", "ratio"), [(BFLOAT16, 768, 520, 3), (np.float32, 1024, 776, 2)])
def test_a_backward_hop_moves_two_or_three_times_the_bytes(dtype, keys, queries, ratio):
    """A token and head of 64: with 16-bit keys and float32 gradients three times the forward's bytes."""
    hop = backward_hop(HeadShape(1, 1, 1, 64, 64), np.dtype(dtype))
    assert (hop.keys_travel, hop.queries_travel) == (keys, queries)
    assert hop.keys_travel == ratio * hop.forward


def test_gradients_make_p_hops():
    forward, backward = backward_bytes(problem(4_000, 4, dtype=np.float32))
    assert forward == 3 * 4_000 * 512
    assert backward == forward + 4 * 4_000 * 512
    assert backward_bytes(problem(4_000, 1)) == (0, 0)


def test_gathering_all_keys_first_moves_the_same_volume_and_needs_memory_for_all_of_them():
    ring, gather = (make_plan(problem(8_000, 8, mask=Mask.full(), schedule=name)) for name in ("ring", "all-gather"))
    assert gather.bytes_sent == ring.bytes_sent
    assert gather.memory.slots == 4 * ring.memory.slots


def test_the_table_of_machines_has_a_source_for_each_and_is_what_the_command_line_offers():
    from ringmpi.cli.plan import MACHINES as OFFERED

    assert sorted(MACHINES) == sorted(OFFERED)
    assert all("data sheet (20" in rates.source for rates in MACHINES.values())


def test_a_balanced_sharding_balances_documents():
    mask = Mask.documents([700, 100, 50, 150], within=Mask.causal())
    by_name = {
        name: imbalance(rank_loads(problem(1000, 4, mask=mask, sharding=name))) for name in ("contiguous", "balanced")
    }
    assert by_name["balanced"] < 1.01 < 1.8 < by_name["contiguous"]
