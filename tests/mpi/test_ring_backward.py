"""The backward ring on real ranks: the same gradients, counts and bits as promised, on any number of processes."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from pytest_mpi import parallel_assert

import ringmpi.api.backward
from ringmpi import (
    Mask,
    Ring,
    Sharding,
    attention,
    attention_backward,
    ring_attention,
    ring_attention_backward,
)
from ringmpi.core.scoring import Scoring
from ringmpi.errors import RingError, ShapeError
from ringmpi.passes.backward_pass import BackwardPass
from tests.mpi.transports import Late, Unpunctual
from tests.strategies import SCHEDULE_NAMES, masks, shardings
from tests.tolerances import assert_gradients

WORLD = MPI.COMM_WORLD
RANK_COUNTS = [1, 2, 3, 4, 5, 7]
WAYS = ["keys", "queries"]
SCHEDULES = ["ring", "bidirectional", "all-gather"]
HEADS = {"sink_logits": np.array([0.5, -1.0, 2.0, 0.0]), "alibi_slopes": np.array([0.3, 0.1, 0.0, 0.05])}


@pytest.fixture(scope="module")
def ring():
    return Ring(WORLD, timeout=30)


def problem(query_length, key_length, dtype=np.float64, heads=(4, 2)):
    """grad_output, q, k, v."""
    rng = np.random.default_rng(6)
    q_shape, k_shape = (heads[0], query_length), (heads[1], key_length)
    shapes = ((*q_shape, 6), (*q_shape, 8), (*k_shape, 8), (*k_shape, 6))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def whole(ring, sharding, shard):
    """The shards of all ranks in the caller's order, on every rank."""
    shards = ring.transport.exchange(shard)
    full = np.empty((1, shards[0].shape[0], sharding.length, *shards[0].shape[2:]), shards[0].dtype)
    for rank, part in enumerate(shards):
        sharding.put(full, part[None], rank)
    return full[0]


def shards_of(ring, arrays, sharding, keys):
    return [owner.take(array, ring) for array, owner in zip(arrays, (sharding, sharding, keys, keys), strict=True)]


def run(ring, arrays, sharding, key_sharding=None, *, travel="auto", upstream=None, **options):
    """Forward and backward on real ranks -> (what this rank gets, gradients of q, k, v put together)."""
    keys = key_sharding or sharding
    mine = shards_of(ring, arrays, sharding, keys)
    place = {"ring": ring, "sharding": sharding, "key_sharding": key_sharding}
    out = ring_attention(*mine[1:], **place, **options)
    extra = None if upstream is None else sharding.take(upstream[..., None], ring)[..., 0]
    found = ring_attention_backward(*mine, out, travel=travel, grad_log_sum_exp=extra, **place, **options)
    owners = (sharding, keys, keys)
    return found, [whole(ring, owner, shard) for owner, shard in zip(owners, found, strict=True)]


def judge(ring, arrays, mask, *where, upstream=None, **options):
    """Judge by the policy, count by integers."""
    found, grads = run(ring, arrays, *where, mask=mask, upstream=upstream, **options)
    allowed = mask.allowed(arrays[1].shape[1], arrays[2].shape[1])
    parallel_assert(sum(ring.transport.exchange(found.pairs)) == allowed.sum() * arrays[1].shape[0])
    scoring = Scoring(8**-0.5, options.get("softcap"), options.get("alibi_slopes"))
    assert_gradients(
        (*(x[None] for x in grads), found.sink_logits, found.alibi_slopes),
        *(x[None] for x in arrays),
        allowed,
        scoring,
        sink_logits=options.get("sink_logits"),
        grad_log_sum_exp=None if upstream is None else upstream[None],
    )
    return grads


@pytest.mark.parallel(RANK_COUNTS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("travel", WAYS)
@pytest.mark.parametrize(("name", "mask"), [("zigzag", Mask.causal()), ("striped", Mask.window(50, 9) | Mask.sinks(4))])
def test_real_ranks_are_exact(ring, name, mask, travel, schedule):
    sharding = getattr(Sharding, name)(83, ring.size)
    judge(ring, problem(83, 83), mask, sharding, travel=travel, schedule=schedule)


@pytest.mark.parallel(RANK_COUNTS)
@pytest.mark.parametrize("travel", WAYS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_every_dtype_travels(ring, dtype, travel):
    judge(ring, problem(61, 61, dtype), Mask.causal(), Sharding.zigzag(61, ring.size), travel=travel)


@pytest.mark.parallel(RANK_COUNTS)
@settings(max_examples=10, derandomize=True, database=None)
@given(data=st.data())
def test_any_problem_on_real_ranks(ring, data):
    """All ranks draw the same examples, empty shards and unequal lengths among them."""
    query_length, key_length = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 40))
    mask = data.draw(masks(query_length, key_length))
    where = data.draw(shardings(query_length, ring.size)), data.draw(shardings(key_length, ring.size))
    schedule = data.draw(SCHEDULE_NAMES)
    travel = "auto" if schedule == "broadcast" else data.draw(st.sampled_from(["auto", *WAYS]))
    options = {"schedule": schedule, "travel": travel}
    judge(ring, problem(query_length, key_length), mask, *where, **options)


@pytest.mark.parallel(RANK_COUNTS)
@pytest.mark.parametrize("travel", WAYS)
def test_gradients_of_sinks_and_slopes_are_the_sum_over_all_ranks(ring, travel):
    upstream = np.random.default_rng(7).standard_normal((4, 41))
    where = Sharding.zigzag(41, ring.size), Sharding.striped(37, ring.size)
    options = {"upstream": upstream, "softcap": 1.5, "travel": travel, **HEADS}
    judge(ring, problem(41, 37), Mask.causal("end"), *where, **options)


@pytest.mark.parallel(RANK_COUNTS)
@pytest.mark.parametrize(
    ("schedule", "travel"),
    [
        ("ring", "keys"),
        ("ring", "queries"),
        ("bidirectional", "keys"),
        ("all-gather", "queries"),
        ("broadcast", "auto"),
    ],
)
def test_processes_compute_the_bits_of_the_simulated_ring(ring, schedule, travel):
    arrays, sharding = problem(98, 98, np.float32), Sharding.zigzag(98, ring.size)
    options = {"mask": Mask.causal(), "schedule": schedule}
    _, grads = run(ring, arrays, sharding, travel=travel, **options)
    options |= {"ranks": ring.size, "sharding": sharding}
    simulated = attention_backward(*arrays, attention(*arrays[1:], **options), travel=travel, **options)
    parallel_assert(all(x.tobytes() == y.tobytes() for x, y in zip(grads, simulated, strict=True)))


@pytest.mark.parallel([2, 3, 4, 5])
@pytest.mark.parametrize("travel", WAYS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_late_messages_change_nothing(ring, schedule, travel, monkeypatch):
    """Class 54: receive buffers hold NaN until a message must have landed."""
    arrays, sharding = problem(53, 47), (Sharding.zigzag(53, ring.size), Sharding.contiguous(47, ring.size))
    options = {"mask": Mask.causal("end"), "schedule": schedule, "travel": travel}
    _, expected = run(ring, arrays, *sharding, **options)
    monkeypatch.setattr(ring, "transport", Late(ring.transport))
    grads = judge(ring, arrays, options.pop("mask"), *sharding, **options)
    parallel_assert(all(x.tobytes() == y.tobytes() for x, y in zip(grads, expected, strict=True)))


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize(("schedule", "travel"), [("ring", "keys"), ("bidirectional", "queries")])
def test_thirty_runs_with_random_delays_are_bitwise_equal(ring, schedule, travel, monkeypatch):
    """Class 45, over a network that delivers when it likes: the order of sums is that of the ring."""
    arrays, sharding = problem(40, 40, np.float32), Sharding.zigzag(40, ring.size)
    options = {"mask": Mask.causal(), "schedule": schedule}
    mine = shards_of(ring, arrays, sharding, sharding)
    out = ring_attention(*mine[1:], ring=ring, sharding=sharding, **options)
    punctual, seen = ring.transport, set()
    for repeat in range(30):
        monkeypatch.setattr(ring, "transport", Unpunctual(punctual, repeat, longest=5e-4))
        found = ring_attention_backward(*mine, out, ring=ring, sharding=sharding, travel=travel, **options)
        seen.add(b"".join(array.tobytes() for array in found))
    parallel_assert(len(seen) == 1)


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("travel", WAYS)
def test_a_ring_that_used_its_own_shard_again_would_be_seen(ring, travel, monkeypatch):
    """Class 74, the fault itself, with a mask that leaves out the rank's own keys."""
    length = 8 * ring.size
    own = Mask.documents([8] * ring.size)
    rows = [(8 * r, 8 * r + 8, a, b, -length, length) for r in range(ring.size) for a, b in around(r, length) if a < b]
    mask = Mask.slices(rows)
    parallel_assert(not (mask.allowed(length, length) & own.allowed(length, length)).any())
    judge(ring, problem(length, length), mask, Sharding.contiguous(length, ring.size), travel=travel)
    original = ringmpi.passes.backward_pass.ring_loop

    def forgetful(itinerary, comm, slots, attend, **options):
        def own_again(piece, payload, poll):
            return attend(piece, slots.payload(itinerary.own[0]), poll)

        return original(itinerary, comm, slots, own_again, **options)

    monkeypatch.setattr(ringmpi.passes.backward_pass, "ring_loop", forgetful)
    with pytest.raises(AssertionError, match="gradient of"):
        judge(ring, problem(length, length), mask, Sharding.contiguous(length, ring.size), travel=travel)


def around(rank, length):
    """The keys before and after those of a rank."""
    return (0, 8 * rank), (8 * rank + 8, length)


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize(("travel", "a_hop"), [("keys", 768 * 2), ("queries", 520 * 4)])
def test_bytes_on_the_wire_are_those_of_the_formula(ring, travel, a_hop, monkeypatch):
    """At d = 64 in 16 bit: P - 1 hops of pieces and P of sums, of a shard each, times key heads or query heads."""
    passes = []

    class Recorded(BackwardPass):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            passes.append(self)

    monkeypatch.setattr(ringmpi.passes.backward_pass, "BackwardPass", Recorded)
    rng, sharding = np.random.default_rng(8), Sharding.contiguous(30, ring.size)
    arrays = [rng.standard_normal((heads, 30, 64)).astype(np.float16) for heads in (4, 4, 2, 2)]
    run(ring, arrays, sharding, travel=travel)
    sent = int(passes[0].timeline.bytes_sent.sum())
    last_hop = {"keys": 512 * 2, "queries": 256 * 4}[travel]
    parallel_assert(sent == 30 // ring.size * ((ring.size - 1) * a_hop + last_hop))


@pytest.mark.parallel([3, 4])
@pytest.mark.parametrize("travel", WAYS)
def test_a_rank_without_positions_takes_part(ring, travel):
    shards = [[range(0)], [range(0, 20)], [range(20, 31)], *[[range(0)]] * (ring.size - 3)]
    judge(ring, problem(31, 31), Mask.causal(), Sharding.from_ranges(31, shards), travel=travel)


@pytest.mark.parallel([2, 3, 5])
@pytest.mark.parametrize(
    ("odd", "error", "message"),
    [
        ({"mask": Mask.causal(1)}, ShapeError, r"rank 1 \(node .+\): out was computed with a different"),
        ({"scale": 0.5}, ShapeError, r"rank 1 \(node .+\): out was computed with a different"),
        ({"schedule": "bidirectional"}, RingError, "a different problem or travel"),
        ({"travel": "queries"}, RingError, "a different problem or travel"),
        ({"sink_logits": [0.0, 0.0, 0.0, 1.0]}, ShapeError, r"rank 1 \(node .+\): out was computed with a different"),
        ({"schedule": "tree"}, ShapeError, r"rank 1 \(node .+\): schedule 'tree' is unknown"),
        ({"travel": "values"}, RingError, "a different problem or travel"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_ranks_that_disagree_all_refuse(ring, odd, error, message):
    sharding = Sharding.contiguous(40, ring.size)
    mine = shards_of(ring, problem(40, 40), sharding, sharding)
    options = {"mask": Mask.causal(), "travel": "keys"}
    out = ring_attention(*mine[1:], ring=ring, sharding=sharding, mask=Mask.causal())
    options |= odd if ring.rank == 1 else {}
    with pytest.raises(error, match=message) as raised:
        ring_attention_backward(*mine, out, ring=ring, sharding=sharding, **options)
    parallel_assert(raised.value.on_all_ranks)


@pytest.mark.parallel([2, 4])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda mine, out: ([mine[0][:, 1:], *mine[1:]], out), r"rank 1 \(node .+\): grad_output has shape"),
        (
            lambda mine, out: (mine, replace(out, log_sum_exp=out.log_sum_exp[:, 1:])),
            r"rank 1 \(node .+\): out.log_sum_exp has",
        ),
        (lambda mine, out: ([*mine[:2], mine[2][:, 1:], mine[3][:, 1:]], out), r"rank 1 \(node .+\): key has"),
        (lambda mine, out: ([mine[0].tolist(), *mine[1:]], out), r"rank 1 \(node .+\): grad_output is a list"),
    ],
)
def test_what_fits_on_one_rank_only_is_refused_on_all(ring, spoil, message):
    sharding = Sharding.contiguous(40, ring.size)
    mine = shards_of(ring, problem(40, 40), sharding, sharding)
    out = ring_attention(*mine[1:], ring=ring, sharding=sharding)
    if ring.rank == 1:
        mine, out = spoil(mine, out)
    with pytest.raises(ShapeError, match=message) as raised:
        ring_attention_backward(*mine, out, ring=ring, sharding=sharding)
    parallel_assert(raised.value.on_all_ranks)


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("travel", WAYS)
def test_not_a_number_on_one_rank_stays_behind_the_mask(ring, travel):
    """Rank 0 alone holds NaN, in document 0: no bit of the other documents changes on any rank."""
    arrays, sharding = problem(30, 30), Sharding.zigzag(30, ring.size)
    options = {"mask": Mask.documents([4, 26], within=Mask.causal()), "travel": travel}
    _, expected = run(ring, arrays, sharding, **options)
    for array in arrays:
        array[:, :4] = np.nan
    with np.errstate(invalid="ignore"):
        _, grads = run(ring, arrays, sharding, **options)
    parallel_assert(all(x[:, 4:].tobytes() == y[:, 4:].tobytes() for x, y in zip(grads, expected, strict=True)))
    parallel_assert(all(np.isnan(x[:, :4]).all() for x in grads))
