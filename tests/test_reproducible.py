"""Equal bits on any number of ranks: whole blocks in ascending order, and a backend that keeps its promise."""

import hashlib
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringmpi import Mask, Sharding, attention, attention_backward, backends
from ringmpi.comm.local import LocalRing
from ringmpi.core.work import ROW_START, ROW_STOP, count_pairs, cut
from ringmpi.errors import BackendError, ShapeError
from tests.backends.meetings import meetings
from tests.backends.natives import ISAS
from tests.backends.rowwise import RowwiseBackend, open_rowwise
from tests.strategies import masks

RANKS = (1, 2, 3, 4, 6, 8)
BLOCK = 4
SCORES = {
    "dropout": 0.3,
    "seed": 5,
    "softcap": 2.0,
    "alibi_slopes": np.array([0.1, 0.3]),
    "sink_logits": np.array([0.5, -np.inf]),
}


@pytest.fixture(autouse=True, scope="module")
def rowwise():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(backends._OPENERS, "rowwise", (open_rowwise.__module__, open_rowwise.__name__))
        yield


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def problem(query_length, key_length):
    """dO, q, k, v: two query heads on one key head."""
    return (
        normal(0, 2, query_length, 2),
        normal(1, 2, query_length, 3),
        normal(2, 1, key_length, 3),
        normal(3, 1, key_length, 2),
    )


def bits(arrays, **options):
    """Hashes of output, log_sum_exp and all gradients."""
    options = {"backend": "rowwise"} | options | {"reproducible": True}
    out = attention(*arrays[1:], **options)
    grads = attention_backward(*arrays, out, **options)
    found = [out.output, out.log_sum_exp, *grads, *([] if grads.sink_logits is None else [grads.sink_logits])]
    assert all(np.isfinite(array[~np.isneginf(array)]).all() for array in found)
    assert grads.pairs == out.pairs
    return [hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=8).hexdigest() for array in found]


@st.composite
def block_shardings(draw, length, size, block=BLOCK):
    """Whole blocks, dealt by a rule or at random: some ranks get several runs, some none."""
    if draw(st.booleans()):
        name = draw(st.sampled_from(["contiguous", "zigzag", "striped"]))
        return getattr(Sharding, name)(length, size, block=block)
    starts = range(0, length, block)
    owners = draw(st.lists(st.integers(0, size - 1), min_size=len(starts), max_size=len(starts)))
    shards = [
        [range(s, min(s + block, length)) for s, o in zip(starts, owners, strict=True) if o == rank]
        for rank in range(size)
    ]
    return Sharding.from_ranges(length, shards, block=block)


@pytest.mark.parametrize("scores", [{}, SCORES], ids=["plain", "all scores"])
@pytest.mark.parametrize("mask", [Mask.causal(), Mask.window(7, 2) | Mask.sinks(3)], ids=str)
def test_output_and_gradients_have_the_same_bits_on_any_number_of_ranks(mask, scores):
    arrays, found = problem(30, 30), {}
    for ranks, name in zip(RANKS, ("zigzag", "contiguous", "striped") * 2, strict=True):
        sharding = getattr(Sharding, name)(30, ranks, block=BLOCK)
        found[ranks] = bits(arrays, mask=mask, ranks=ranks, sharding=sharding, **scores)
    assert all(hashes == found[1] for hashes in found.values()), found


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scores", [{}, SCORES], ids=["plain", "all scores"])
def test_the_native_kernels_keep_their_promise(scores, isa, monkeypatch):
    """Shards of 1 to 5 blocks of a length that no tile and no vector divides, the last block cut short."""
    monkeypatch.setenv("RINGMPI_NATIVE", isa)
    arrays, found, mask = problem(293, 293), {}, Mask.window(150, 2) | Mask.sinks(3)
    for ranks, name in zip(RANKS, ("zigzag", "contiguous", "striped") * 2, strict=True):
        sharding = getattr(Sharding, name)(293, ranks, block=36)
        found[ranks] = bits(arrays, mask=mask, ranks=ranks, sharding=sharding, backend="native", **scores)
    assert all(hashes == found[1] for hashes in found.values()), found


@settings(max_examples=8)
@given(st.data())
def test_any_whole_blocks_of_any_lengths_under_any_mask(data):
    lengths = data.draw(st.integers(0, 25)), data.draw(st.integers(0, 25))
    mask, ranks = data.draw(masks(*lengths)), data.draw(st.integers(2, 8))
    alone = [Sharding.contiguous(length, 1, block=BLOCK) for length in lengths]
    spread = [data.draw(block_shardings(length, ranks)) for length in lengths]
    arrays = problem(*lengths)
    expected = bits(arrays, mask=mask, ranks=1, sharding=alone[0], key_sharding=alone[1])
    assert bits(arrays, mask=mask, ranks=ranks, sharding=spread[0], key_sharding=spread[1]) == expected


def test_a_sharding_by_name_is_made_of_blocks_of_512():
    arrays = problem(1100, 1100)
    mask = Mask.window(1, 0)
    assert bits(arrays, mask=mask, ranks=3) == bits(arrays, mask=mask, ranks=1, sharding="striped")


class Unpunctual(LocalRing):
    """Who goes on next is a matter of luck."""

    seeds = count()

    def drive(self, loops):
        rng, waiting, flights = np.random.default_rng(next(self.seeds)), dict(enumerate(loops)), {}
        while waiting:
            rank = int(rng.choice(list(waiting)))
            if rank not in flights or flights[rank].landed():
                try:
                    flights[rank] = next(waiting[rank])
                except StopIteration:
                    del waiting[rank]


def test_late_messages_change_no_bit(monkeypatch):
    arrays = problem(30, 30)
    options = {"mask": Mask.causal(), "ranks": 4, "sharding": Sharding.zigzag(30, 4, block=BLOCK)}
    expected = bits(arrays, **options)
    monkeypatch.setattr("ringmpi.api.simulated_ring.LocalRing", Unpunctual)
    for _ in range(5):
        assert bits(arrays, **options) == expected


def test_the_size_of_kernel_calls_changes_no_bit(monkeypatch):
    arrays = problem(30, 30)
    options = {"mask": Mask.causal(), "ranks": 2, "sharding": Sharding.zigzag(30, 2, block=15)}
    found = []
    for budget in (1, 5, 37, 10**9):
        monkeypatch.setattr(RowwiseBackend, "call_budget", lambda self, heads, dtype, budget=budget: budget)
        found.append(bits(arrays, **options))
    assert found == [found[0]] * 4


@pytest.mark.parametrize("isa", ISAS)
def test_several_slices_under_query_heads_that_share_keys(isa, monkeypatch):
    """A key sums over heads and slices: a call that had some slices of it would part the sums between heads."""
    monkeypatch.setenv("RINGMPI_NATIVE", isa)
    arrays = (normal(0, 4, 96, 8), normal(1, 4, 96, 8), normal(2, 1, 96, 8), normal(3, 1, 96, 8))
    kernel = type(backends.get_backend("native"))
    options = {"mask": Mask.window(20, 3) | Mask.sinks(40), "backend": "native"}
    found = []
    for ranks, budget in ((1, 10**9), (1, 900), (3, 300), (2, 10**9)):
        monkeypatch.setattr(kernel, "call_budget", lambda self, heads, dtype, budget=budget: budget)
        found.append(bits(arrays, **options, ranks=ranks, sharding=Sharding.zigzag(96, ranks, block=16)))
    assert found == [found[0]] * 4


def test_calls_that_split_the_keys_of_a_row_would_change_bits(monkeypatch):
    """What the one above guards against: the usual cut, by rows and keys."""
    monkeypatch.setattr("ringmpi.passes.visits.cut", lambda work, budget, only: cut(work, budget))
    arrays, options = problem(30, 30), {"ranks": 1, "sharding": Sharding.zigzag(30, 1, block=15)}
    found = []
    for budget in (5, 10**9):
        monkeypatch.setattr(RowwiseBackend, "call_budget", lambda self, heads, dtype, budget=budget: budget)
        found.append(bits(arrays, **options))
    assert found[0] != found[1]


@given(meetings(), st.integers(1, 60))
def test_a_cut_by_rows_alone_keeps_the_keys_of_every_row_together(meeting, budget):
    calls = cut(meeting.work, budget, only=ROW_START)
    assert sum(int(count_pairs(call).sum()) for call in calls) == count_pairs(meeting.work).sum()
    rows = [row for call in calls for item in call.tolist() for row in range(item[ROW_START], item[ROW_STOP])]
    whole = [row for item in meeting.work.tolist() for row in range(item[ROW_START], item[ROW_STOP])]
    assert sorted(rows) == sorted(whole)  # tight: each row of each item once


def test_nan_on_one_rank_puts_all_on_one_path(monkeypatch):
    """Which rank holds the NaN depends on the number of ranks, so it may not decide how a block is computed."""
    _, q, k, v = problem(30, 30)
    k[0, 29] = np.nan
    seen, attend = [], RowwiseBackend.attend
    monkeypatch.setattr(
        RowwiseBackend, "attend", lambda self, *args, finite, **kw: seen.append(finite) or attend(self, *args, **kw)
    )
    attention(q, k, v, ranks=3, sharding=Sharding.zigzag(30, 3, block=4), reproducible=True, backend="rowwise")
    assert seen
    assert not any(seen)


def test_gradients_of_slopes_are_left_out():
    arrays = problem(12, 12)
    options = {"alibi_slopes": [0.1, 0.2], "sharding": Sharding.zigzag(12, 1, block=4), "backend": "rowwise"}
    out = attention(*arrays[1:], **options)
    assert attention_backward(*arrays, out, reproducible=True, **options).alibi_slopes is None
    assert attention_backward(*arrays, out, schedule="broadcast", **options).alibi_slopes is not None


def run(**options):
    _, q, k, v = problem(12, 12)
    return attention(q, k, v, **({"reproducible": True, "backend": "rowwise"} | options))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: run(backend="numpy"), BackendError, 'use a backend whose bits do not: "native"'),
        (lambda: run(schedule="ring"), ShapeError, "schedule 'ring' meets keys in an order that depends on the rank"),
        (lambda: run(sharding=Sharding.zigzag(12, 1)), ShapeError, r"Sharding.zigzag\(12, 1, block=512\)"),
        (
            lambda: run(ranks=2, sharding=Sharding.zigzag(12, 2, block=2), key_sharding=Sharding.contiguous(12, 2)),
            ShapeError,
            r"the sharding of keys \(contiguous\) may be cut between any two positions",
        ),
        (
            lambda: Sharding.from_ranges(12, [[range(0, 6)], [range(6, 12)]], block=4),
            ShapeError,
            r"rank 0 owns range\(0, 6\), which is not made of whole blocks of 4 positions",
        ),
    ],
)
def test_what_would_not_be_reproducible_is_refused_with_what_to_do(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_broadcast_takes_both_sides_round():
    arrays = problem(12, 12)
    out = attention(*arrays[1:], schedule="broadcast")
    with pytest.raises(ShapeError, match="travel is 'keys', but in a broadcast both sides travel"):
        attention_backward(*arrays, out, schedule="broadcast", travel="keys")
    assert attention_backward(*arrays, out, schedule="broadcast").travel == "both"
