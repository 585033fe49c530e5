"""The map pass on real ranks: the same map and counts, on any number of processes."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from pytest_mpi import parallel_assert

import ringmpi.passes.map_gathering
from ringmpi import Mask, Ring, Sharding, attention, attention_map, ring_attention_map
from ringmpi.core.late_recording import LateRecording
from ringmpi.core.scoring import Scoring
from ringmpi.core.top_keys import ChosenRows, top_keys_of
from ringmpi.errors import RingError, ShapeError
from ringmpi.job.late_passes import record_top_keys
from ringmpi.passes.map_pass import MapOperands
from ringmpi.storage.record_layout import TOP_KEYS, TOP_ROWS, TOP_WEIGHTS
from tests.strategies import SCHEDULE_NAMES, masks, shardings
from tests.tolerances import assert_map

WORLD = MPI.COMM_WORLD
RANK_COUNTS = [1, 2, 3, 4, 5, 7]
SCHEDULES = ["ring", "bidirectional", "all-gather", "broadcast"]
HEADS = {"alibi_slopes": np.array([0.3, 0.1, 0.0, 0.05]), "softcap": 3.0}


@pytest.fixture(scope="module")
def ring():
    return Ring(WORLD, timeout=30)


def inputs(query_length, key_length, mask, dtype=np.float64, **options):
    """q, k, and the log_sum_exp of the whole."""
    rng = np.random.default_rng(6)
    q, k = (rng.standard_normal((heads, n, 8)).astype(dtype) for heads, n in ((4, query_length), (2, key_length)))
    return q, k, attention(q, k, k, mask=mask, backend="numpy", **options).log_sum_exp


def rows_of(array, sharding, ring):
    return sharding.take(array[..., None], ring)[..., 0]


def judge(ring, mask, sharding, keys, block, *, dtype=np.float64, sinks=None, **options):
    """Judge by the policy, count by integers."""
    scores = {name: options[name] for name in options if name in HEADS}
    q, k, log_sum_exp = inputs(sharding.length, keys.length, mask, dtype, sink_logits=sinks, **scores)
    shards = sharding.take(q, ring), keys.take(k, ring), rows_of(log_sum_exp, sharding, ring)
    where = {"ring": ring, "sharding": sharding, "key_sharding": keys}
    found = ring_attention_map(*shards, block=block, mask=mask, **where, **options)
    allowed = mask.allowed(sharding.length, keys.length)
    parallel_assert(sum(ring.transport.exchange(found.pairs)) == allowed.sum() * 4)
    parallel_assert((found.map is None) == (ring.rank > 0))
    received = np.empty((1, 4, keys.length), found.received.dtype)
    for rank, part in enumerate(ring.transport.exchange(found.received)):
        keys.put(received, part[None], rank)
    whole = ring.transport.exchange(found.map)[0]
    scoring = Scoring(8**-0.5, options.get("softcap"), options.get("alibi_slopes"))
    assert_map((whole[None], received), q[None], k[None], allowed, scoring, block, sink_logits=sinks)


@pytest.mark.parallel(RANK_COUNTS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["zigzag", "striped", "contiguous"])
def test_real_ranks_are_exact(ring, name, schedule):
    sharding = getattr(Sharding, name)(83, ring.size)
    judge(ring, Mask.window(50, 9) | Mask.sinks(4), sharding, sharding, 10, schedule=schedule)
    judge(ring, Mask.causal(), sharding, sharding, 16, schedule=schedule, **HEADS)


@pytest.mark.parallel(RANK_COUNTS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_every_dtype_travels(ring, dtype):
    sharding = Sharding.zigzag(61, ring.size)
    judge(ring, Mask.causal(), sharding, sharding, 7, dtype=dtype, sinks=np.array([0.5, -np.inf, 2, 0]))


@pytest.mark.parallel(RANK_COUNTS)
@settings(max_examples=10, derandomize=True, database=None)
@given(data=st.data())
def test_any_problem_on_real_ranks(ring, data):
    """All ranks draw the same examples, empty shards and unequal lengths among them."""
    query_length, key_length = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 40))
    mask = data.draw(masks(query_length, key_length))
    where = data.draw(shardings(query_length, ring.size)), data.draw(shardings(key_length, ring.size))
    judge(ring, mask, *where, data.draw(st.integers(1, 50)), schedule=data.draw(SCHEDULE_NAMES))


@pytest.mark.parallel([3, 4])
def test_a_map_is_gathered_in_slabs_of_any_size(ring, monkeypatch):
    """One query block at a time: no rank holds more than it must."""
    monkeypatch.setattr(ringmpi.passes.map_gathering, "SLAB_BYTES", 1)
    sharding = Sharding.striped(83, ring.size)
    judge(ring, Mask.causal(), sharding, sharding, 10)


@pytest.mark.parallel([2, 3])
def test_ranks_that_disagree_are_refused(ring):
    mask, sharding = Mask.causal(), Sharding.zigzag(40, ring.size)
    q, k, log_sum_exp = inputs(40, 40, mask)
    shards = sharding.take(q, ring), sharding.take(k, ring), rows_of(log_sum_exp, sharding, ring)
    with pytest.raises(RingError, match="block"):
        ring_attention_map(*shards, ring=ring, sharding=sharding, mask=mask, block=8 + ring.rank)
    with pytest.raises(ShapeError, match="log_sum_exp"):
        ring_attention_map(*shards[:2], shards[2][..., ring.rank :], ring=ring, sharding=sharding, block=8)


@pytest.mark.parallel(RANK_COUNTS)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32])
def test_top_keys_of_all_ranks_are_those_of_one(ring, dtype):
    mask, rows = Mask.causal(), np.array([0, 3, 40, 82])
    q, k, log_sum_exp = (x[None] for x in inputs(83, 83, mask, dtype))
    sharding, one = Sharding.striped(83, ring.size), Sharding.contiguous(83, 1)
    pose = ringmpi.core.problem.pose_problem
    alone, problem = (pose((q, k, k), mask=mask, queries=where, keys=where) for where in (one, sharding))
    operands = MapOperands(sharding.take(q, ring), rows_of(log_sum_exp, sharding, ring), sharding.take(k, ring))
    found = record_top_keys(ring.transport, problem, LateRecording(top_rows=rows, top_key_count=5), operands)
    if ring.rank:
        assert not found
        return
    expected = top_keys_of(alone, 0, ChosenRows(rows, q[:, :, rows]), k, 5)
    assert found[TOP_ROWS].tolist() == rows.tolist()
    assert (found[TOP_KEYS] == expected.keys).all()
    weights = expected.weights(log_sum_exp[:, :, rows])
    np.testing.assert_array_equal(found[TOP_WEIGHTS], weights.astype(np.float32))


@pytest.mark.parallel([1, 3])
def test_one_process_and_many_have_one_map(ring):
    mask, sharding = Mask.causal(), Sharding.zigzag(83, ring.size)
    q, k, log_sum_exp = inputs(83, 83, mask)
    shards = sharding.take(q, ring), sharding.take(k, ring), rows_of(log_sum_exp, sharding, ring)
    found = ring_attention_map(*shards, ring=ring, sharding=sharding, block=16, mask=mask)
    expected = attention_map(q, k, log_sum_exp, block=16, mask=mask, ranks=ring.size)
    if ring.rank == 0:
        assert found.map.tobytes() == expected.map.tobytes()
    assert found.received.tobytes() == sharding.take(expected.received[..., None], ring).tobytes()
