"""A plan says what a run does: pairs, bytes and memory of every rank in every step, equal as integers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ringmpi import Mask, Sharding
from ringmpi.backends import get_backend
from ringmpi.comm.local import LocalRing
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.gradients import Saved
from ringmpi.core.problem import pose_problem
from ringmpi.core.rank_work import RankWork
from ringmpi.core.record import Recording, uninitialised_record
from ringmpi.passes.backward_pass import BackwardPass
from ringmpi.passes.forward_pass import ForwardPass
from ringmpi.passes.travel import Operands, travel_by_name
from ringmpi.planner.backward import plan_backward
from ringmpi.planner.balance import key_bytes, rank_loads, read_pass
from ringmpi.planner.machines import Rates
from ringmpi.planner.memory import rank_memory
from ringmpi.planner.plan import make_plan
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
        record=draw(st.sampled_from([None, Recording(2)])),
    )


def run(problem):
    """The passes of all ranks, after the loop; keys and values lie in slots as in `ringmpi run`."""
    ring, heads = LocalRing(problem.size), problem.heads
    pairs = np.stack([RankWork(problem, rank).pairs() for rank in range(problem.size)])
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
    for due in range(1, tables.steps):
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
        if problem.record is not None:
            arrays += sum(array.nbytes for array in partial.record.arrays.values())
            arrays += sum(array.nbytes for array in forward.finish().record.arrays)
        peaks.append(forward.slots.nbytes + arrays + max(queries, cast))
    assert plan.memory.peak == max(peaks) == peaks[plan.memory_rank]


@given(problems())
def test_the_work_does_not_depend_on_how_it_is_spread(problem):
    tables = read_pass(problem)
    assert tables.pairs.sum() * problem.heads.query_slabs == problem.pairs_asked
    assert (rank_loads(problem) == tables.pairs.sum(1)).all()
    assert tables.bytes_due.sum() == tables.bytes_sent.sum()
    assert tables.bytes_sent.sum() % key_bytes(problem) == 0
    assert 0 <= tables.density <= 1


def ones(problem, rank):
    """The shards of a rank."""
    heads, dtype, wide = problem.heads, problem.dtype, accumulate_dtype(problem.dtype)
    rows, keys = problem.queries.shard_length(rank), problem.keys.shard_length(rank)
    q, grad_output = (
        np.ones((heads.batch, heads.query_heads, rows, n), dtype) for n in (heads.head_dim, heads.value_dim)
    )
    k, v = (np.ones((heads.batch, heads.key_heads, keys, n), dtype) for n in (heads.head_dim, heads.value_dim))
    row = np.ones((heads.batch, heads.query_heads, rows), wide)
    return Operands(q, k, v, Saved(grad_output, row, row.copy()))


def run_backward(problem, travel):
    """The backward passes of all ranks, after the loop, and what each holds then, bytes."""
    ring, backend = LocalRing(problem.size), get_backend("numpy")
    ways = [travel_by_name(travel, problem, rank) for rank in range(problem.size)]
    pairs = np.stack([way.work.pairs() for way in ways])
    passes = [BackwardPass(problem, backend, ways[rank], pairs[rank], pairs > 0) for rank in range(problem.size)]
    operands = [ones(problem, rank) for rank in range(problem.size)]
    finite = np.ones(problem.size, bool)
    ring.drive([p.loop(comm, mine, finite) for comm, p, mine in zip(ring.ranks, passes, operands, strict=True)])
    return passes, operands


def recorded(problem, rank):
    """Bytes of the record of a rank's rows, once it is made."""
    rows = problem.heads.query_slabs * problem.queries.shard_length(rank)
    made = uninitialised_record((rows,), accumulate_dtype(problem.dtype))
    return sum(array.nbytes for array in made.arrays) if problem.record else 0


def in_memory(*arrays):
    """Bytes of the memory under these arrays, counted once where they share it."""
    owners = {}
    for array in arrays:
        while array.base is not None:
            array = array.base
        owners[id(array)] = array.nbytes
    return sum(owners.values())


@given(problems(), st.sampled_from(["keys", "queries"]))
def test_the_backward_pass_moves_and_holds_what_the_plan_says(problem, travel):
    in_order = problem.schedule.in_order  # then both travel, one after the other, and this looks at one of them
    plan = plan_backward(problem, "auto" if in_order else travel, range(problem.size), Rates(1e12, 1e9, "test"))
    passes, operands = run_backward(problem, travel)
    assert plan.chosen == ("both" if in_order else travel)
    way = plan.keys if travel == "keys" else plan.queries
    assert way.bytes_sent.tolist() == [int(backward.timeline.bytes_sent.sum()) for backward in passes]
    assert sum(backward.pairs_attended for backward in passes) == problem.pairs_asked
    assert way.seconds >= 0
    peaks = []
    for backward, held in zip(passes, operands, strict=True):
        item, saved = problem.dtype.itemsize, held.saved
        output = saved.grad_output.nbytes + recorded(problem, backward.rank)
        own = [array for payload in backward.slots.pieces._own.values() for array in payload]
        inputs = held.q, held.k, held.v, saved.grad_output, saved.log_sum_exp, saved.delta
        slots = backward.slots.pieces.nbytes + backward.slots.gradients.nbytes + in_memory(*backward.staying)
        grads = backward.finish()
        narrow = item < accumulate_dtype(problem.dtype).itemsize
        casts = sum(grad.nbytes for grad in grads if grad is not None) if narrow else 0
        home = sum(array.nbytes for array in backward._visitors() if array is not None)
        in_loop = output + slots + in_memory(*inputs, *own)
        after = output + slots + in_memory(saved.log_sum_exp, *own) + home + casts
        if in_order:
            after = in_loop + casts if travel == "keys" else after
            found = held.q.nbytes if travel == "queries" else 0  # dQ, of the pass before
            in_loop, after = in_loop + found, after + found
        peaks.append(max(in_loop, after))
    assert way.memory.peak == max(peaks) == peaks[way.memory_rank]


@given(problems())
def test_the_forward_pass_before_it_holds_what_the_plan_says(problem):
    pairs = np.stack([RankWork(problem, rank).pairs() for rank in range(problem.size)])
    for rank in range(problem.size):
        forward = ForwardPass(problem, rank, get_backend("numpy"), pairs[rank], pairs > 0)
        held = ones(problem, rank)
        forward.adopt(held.k, held.v)
        partial, saved = forward.partial, held.saved
        own = [array for payload in forward.slots._own.values() for array in payload]
        arrays = [partial.row_max, partial.row_sum, partial.weighted_sum, held.q, held.k, held.v, saved.grad_output]
        arrays += [] if partial.record is None else partial.record.arrays.values()
        cast = saved.grad_output.nbytes if problem.dtype == np.float16 else 0
        found = in_memory(*arrays, saved.delta, *own) + forward.slots.nbytes + cast + recorded(problem, rank)
        assert rank_memory(problem, forward.itinerary, gradients=True).peak == found


def test_auto_takes_the_way_that_moves_fewer_bytes():
    for heads, travel in (((8, 1), "keys"), ((4, 4), "queries")):
        shapes = [(heads[0], 40, 8), (heads[1], 40, 8), (heads[1], 40, 8)]
        problem = pose_problem(
            [Shape(shape, np.dtype(np.float16)) for shape in shapes],
            mask=Mask.full(),
            queries=Sharding.contiguous(40, 4),
            keys=Sharding.contiguous(40, 4),
        )
        plan = plan_backward(problem, "auto", range(4), None)
        assert plan.chosen == travel
        other = plan.queries if travel == "keys" else plan.keys
        assert plan.way.bytes_sent.sum() < other.bytes_sent.sum()
        assert plan.way.seconds is None
