"""What travels in the backward pass: which bytes, which side, which work."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringmpi.api.backward
from ringmpi import Mask, Sharding, attention, attention_backward
from ringmpi.core.problem import pose_problem
from ringmpi.core.rank_work import KeyWork, RankWork
from ringmpi.core.schedule import SCHEDULES
from ringmpi.core.work import count_pairs, key_bounds
from ringmpi.errors import ShapeError
from ringmpi.passes.backward_pass import BackwardPass
from ringmpi.passes.travel import KeysTravel, QueriesTravel, round_bytes, travel_by_name
from ringmpi.planner.backward import backward_hop
from tests.strategies import LENGTHS, RANKS, SCHEDULE_NAMES, masks, shardings


class Shape:
    def __init__(self, heads, length, dim, dtype="f2"):
        self.shape, self.dtype = (heads, length, dim), np.dtype(dtype)


def problem_of(heads=(1, 1), lengths=(100, 100), dims=(64, 64), dtype="f2", ranks=2, mask=None, schedule="ring"):
    """Contiguous shards."""
    arrays = Shape(heads[0], lengths[0], dims[0], dtype), *(Shape(heads[1], lengths[1], dim, dtype) for dim in dims)
    queries, keys = (Sharding.contiguous(length, ranks) for length in lengths)
    return pose_problem(arrays, mask=mask or Mask.full(), queries=queries, keys=keys, schedule=schedule)


@pytest.fixture
def passes(monkeypatch):
    """The passes of the ranks of a simulated ring, as they are made."""
    made = []

    class Recorded(BackwardPass):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(ringmpi.api.backward, "BackwardPass", Recorded)
    return made


def run(lengths, heads, dims, dtype, **ring):
    rng = np.random.default_rng(4)
    shapes = (heads[0], lengths[0], dims[0]), (heads[1], lengths[1], dims[0]), (heads[1], lengths[1], dims[1])
    q, k, v = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    travel = ring.pop("travel", "auto")
    out = attention(q, k, v, **ring)
    return attention_backward(out.output, q, k, v, out, travel=travel, **ring)


@pytest.mark.parametrize("schedule", sorted(name for name, schedule in SCHEDULES.items() if not schedule.in_order))
@pytest.mark.parametrize(
    ("travel", "dtype", "there", "back"),
    [
        ("keys", np.float16, 256, 512),
        ("keys", ml_dtypes.bfloat16, 256, 512),
        ("keys", np.float32, 512, 512),
        ("queries", np.float16, 264, 256),
        ("queries", ml_dtypes.bfloat16, 264, 256),
        ("queries", np.float32, 520, 256),
    ],
)
def test_bytes_of_a_token_head_and_hop_are_those_of_the_formula(passes, travel, dtype, there, back, schedule):
    """At d = 64, 768 and 520 in 16 bit, 1,024 and 776 in float32: pieces make P - 1 hops, their gradients P."""
    assert there + back in ({768, 520} if np.dtype(dtype).itemsize == 2 else {1024, 776})
    for ranks in (1, 2, 3, 5):
        passes.clear()
        found = run((30, 30), (4, 2), (64, 64), dtype, ranks=ranks, travel=travel, schedule=schedule)
        assert found.travel == travel
        sent = sum(int(one.timeline.bytes_sent.sum()) for one in passes)
        received = sum(int(one.timeline.bytes_received.sum()) for one in passes)
        heads = 2 if travel == "keys" else 4
        hops = (ranks - 1) * there + (ranks * back if ranks > 1 else 0)
        assert sent == received == 30 * heads * hops


def test_bytes_are_those_of_the_key_heads_and_of_both_head_dims(passes):
    run((24, 36), (6, 2), (16, 8), np.float64, ranks=3, travel="keys")
    assert sum(int(one.timeline.bytes_sent.sum()) for one in passes) == 36 * 2 * (16 + 8) * 8 * (2 + 3)
    passes.clear()
    run((24, 36), (6, 2), (16, 8), np.float64, ranks=3, travel="queries")
    assert sum(int(one.timeline.bytes_sent.sum()) for one in passes) == 24 * 6 * 8 * (2 * (16 + 8 + 2) + 3 * 16)


def test_what_nobody_needs_does_not_travel(passes):
    """Documents that end with their shards: nothing is sent."""
    mask = Mask.documents([10, 10, 10])
    for travel in ("keys", "queries"):
        run((30, 30), (2, 1), (8, 8), np.float32, ranks=3, sharding="contiguous", mask=mask, travel=travel)
    assert not sum(int(one.timeline.bytes_sent.sum()) for one in passes)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_memory_of_a_rank_does_not_grow_with_the_ring(passes, size):
    """Class 68 for gradients: two slots of pieces and three of sums, a shard long each."""
    for travel in ("keys", "queries"):
        passes.clear()
        run((16 * size, 16 * size), (2, 1), (8, 8), np.float32, ranks=size, sharding="contiguous", travel=travel)
        for one in passes:
            assert [len(slot) for slot in one.slots.gradients._rooms] == [len(one.travel.gradient_forms())] * 3
            assert len(one.slots.pieces._rooms) <= 2


@pytest.mark.parametrize(
    ("heads", "lengths", "expected"),
    [
        ((8, 8), (100, 100), "queries"),
        ((9, 3), (100, 100), "keys"),
        ((8, 8), (160, 100), "keys"),
        ((9, 3), (20, 100), "queries"),
    ],
)
def test_auto_lets_the_cheaper_side_travel(heads, lengths, expected):
    problem = problem_of(heads, lengths)
    cost = {way.name: round_bytes(way) for way in (KeysTravel(problem, 0), QueriesTravel(problem, 0))}
    assert cost == {"keys": 768 * heads[1] * lengths[1], "queries": 520 * heads[0] * lengths[0]}
    assert min(cost, key=cost.get) == expected
    for rank in range(2):
        assert travel_by_name("auto", problem, rank).name == expected


def test_keys_travel_where_both_cost_the_same():
    problem = problem_of((2, 2), dims=(16, 2), dtype="f4")
    assert round_bytes(KeysTravel(problem, 0)) == round_bytes(QueriesTravel(problem, 0))
    assert travel_by_name("auto", problem, 0).name == "keys"


@pytest.mark.parametrize("name", ["keys", "queries"])
def test_a_way_may_be_asked_for(name):
    assert travel_by_name(name, problem_of(), 0).name == name


def test_an_unknown_way_is_refused_with_the_known_ones():
    with pytest.raises(ShapeError, match="travel 'values' is unknown; choose one of auto, keys, queries"):
        travel_by_name("values", problem_of(), 0)


@settings(max_examples=25)  # counts pair by pair, in Python
@given(LENGTHS, LENGTHS, RANKS, SCHEDULE_NAMES, st.data())
def test_the_work_of_keys_and_of_queries_are_the_pairs_of_the_mask(query_length, key_length, size, schedule, data):
    """Both ways round: over all ranks and pieces each pair once, at its own local place."""
    mask = data.draw(masks(query_length, key_length))
    queries, keys = data.draw(shardings(query_length, size)), data.draw(shardings(key_length, size))
    arrays = Shape(1, query_length, 4), Shape(1, key_length, 4), Shape(1, key_length, 4)
    problem = pose_problem(arrays, mask=mask, queries=queries, keys=keys, schedule=schedule)
    for way in (KeysTravel, QueriesTravel):
        met = np.zeros((query_length, key_length), int)
        for rank in range(size):
            travel = way(problem, rank)
            for n, piece in enumerate(travel.pieces):
                visiting = np.concatenate([np.empty(0, int), *map(np.asarray, piece.ranges)]).astype(int)
                residents = (queries if way is KeysTravel else keys).positions(rank)
                rows, columns = (residents, visiting) if way is KeysTravel else (visiting, residents)
                table = travel.work.table(n)
                assert count_pairs(table).sum() == travel.work.pairs()[n]
                for item in table:
                    for row in range(item[0], item[1]):
                        start, stop = key_bounds(item, np.array(row))
                        met[rows[row], columns[int(start) : int(stop)]] += 1
        np.testing.assert_array_equal(met, mask.allowed(query_length, key_length))


def test_in_a_broadcast_both_sides_travel_and_no_gradients(passes):
    """A token and head of 64 in 16 bit: K and V, 256 bytes, then Q, dO, log_sum_exp and delta, 264."""
    found = run((64, 64), (2, 1), (64, 64), np.float16, ranks=4, sharding="contiguous", schedule="broadcast")
    sent = [
        sum(int(p.timeline.bytes_sent.sum()) for p in passes if p.travel.name == name) for name in ("keys", "queries")
    ]
    assert sent == [3 * 64 * 256, 3 * 64 * 2 * 264]
    assert found.travel == "both"


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_work_is_as_balanced_whichever_side_travels(size):
    """Class 36: zigzag under a causal mask; no rank works a tenth more than the mean."""
    sharding = Sharding.zigzag(800, size)
    problem = pose_problem([Shape(1, 800, 8)] * 3, mask=Mask.causal(), queries=sharding, keys=sharding)
    for work_of in (KeyWork, RankWork):
        work = [int(work_of(problem, rank).pairs().sum()) for rank in range(size)]
        assert sum(work) == problem.pairs_asked
        assert max(work) <= 1.1 * np.mean(work)


@pytest.mark.parametrize("heads", [(8, 8), (9, 3)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_plan_counts_the_bytes_that_travel(heads, dtype):
    arrays = [np.zeros((n, 40, 64), dtype) for n in (heads[0], heads[1], heads[1])]
    problem = pose_problem(arrays, mask=Mask.full(), queries=Sharding.zigzag(40, 4), keys=Sharding.zigzag(40, 4))
    hop = backward_hop(problem.heads, problem.dtype)
    assert round_bytes(travel_by_name("keys", problem, 0)) == 40 * hop.keys_travel
    assert round_bytes(travel_by_name("queries", problem, 0)) == 40 * hop.queries_travel
