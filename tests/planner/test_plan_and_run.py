"""A plan says what a run does: pairs, bytes and memory of every rank in every step, equal as integers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ringmpi.backends import get_backend
from ringmpi.comm.local import LocalRing
from ringmpi.core.problem import pose_problem
from ringmpi.planner.balance import key_bytes, rank_loads, read_pass
from ringmpi.planner.plan import make_plan
from ringmpi.ring_pass import ForwardPass
from tests.planner.problems import Shape
from tests.strategies import LENGTHS, RANKS, SCHEDULE_NAMES, masks, shardings


@st.composite
def problems(draw):
    """Any mask, shardings and schedule, on any number of ranks."""
    size, query_length, key_length = draw(RANKS), draw(LENGTHS), draw(LENGTHS)
    mask = draw(masks(query_length, key_length))
    dtype = np.dtype(draw(st.sampled_from([np.float16, np.float32])))
    shapes = [(2, 4, query_length, 3), (2, 2, key_length, 3), (2, 2, key_length, 5)]
    return pose_problem(
        [Shape(shape, dtype) for shape in shapes],
        mask=mask,
        queries=draw(shardings(query_length, size, mask, key_length)),
        keys=draw(shardings(key_length, size)),
        schedule=draw(SCHEDULE_NAMES),
    )


def run(problem):
    """The passes of all ranks, after the loop; keys and values lie in slots as in `ringmpi run`."""
    ring, heads = LocalRing(problem.size), problem.heads
    pairs = np.stack([problem.work_of(rank).pairs() for rank in range(problem.size)])
    backend = get_backend("numpy")
    passes = [ForwardPass(problem, rank, backend, pairs[rank], pairs > 0, donated=True) for rank in range(ring.size)]
    loops = []
    for comm, forward in zip(ring.ranks, passes, strict=True):
        for _, payload in forward.own_payloads():
            for array in payload:
                array[...] = 1
        rows = problem.queries.shard_length(comm.rank)
        q = np.ones((heads.batch, heads.query_heads, rows, heads.head_dim), problem.dtype)
        loops.append(forward.loop(comm, q, np.ones(problem.size, bool)))
    ring.drive(loops)
    return passes


@given(problems())
def test_pairs_and_bytes_are_those_of_the_run(problem):
    tables, timelines = read_pass(problem), [forward.timeline for forward in run(problem)]
    pairs = np.stack([timeline.pairs_attended for timeline in timelines])
    sent = np.stack([timeline.bytes_sent for timeline in timelines])
    received = np.stack([timeline.bytes_received for timeline in timelines])
    assert (tables.pairs * problem.heads.query_slabs == pairs).all()
    assert (tables.bytes_sent == sent.sum(1)).all()
    left_at = np.zeros_like(tables.bytes_due)
    for due in range(1, problem.size):
        left_at[:, due - 1 if problem.schedule.hand_to_hand else 0] += tables.bytes_due[:, due]
    assert (left_at == received).all()


@given(problems())
def test_memory_is_what_a_rank_allocates(problem):
    plan, passes = make_plan(problem), run(problem)
    peaks = []
    for forward in passes:
        partial = forward.partial
        arrays = sum(array.nbytes for array in (partial.row_max, partial.row_sum, partial.weighted_sum))
        rows = problem.heads.query_slabs * problem.queries.shard_length(forward.rank)
        cast = problem.dtype.itemsize * rows * problem.heads.value_dim if problem.dtype == np.float16 else 0
        queries = rows * problem.heads.head_dim * problem.dtype.itemsize
        peaks.append(queries + arrays + max(forward.slots.nbytes, cast))
    assert plan.memory.peak == max(peaks) == peaks[plan.memory_rank]


@given(problems())
def test_the_work_does_not_depend_on_how_it_is_spread(problem):
    tables = read_pass(problem)
    assert tables.pairs.sum() * problem.heads.query_slabs == problem.pairs_asked
    assert (rank_loads(problem) == tables.pairs.sum(1)).all()
    assert tables.bytes_due.sum() == tables.bytes_sent.sum()
    assert tables.bytes_sent.sum() % key_bytes(problem) == 0
    assert 0 <= tables.density <= 1
