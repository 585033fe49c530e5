"""The memory of a map pass, term by term, is what its ranks hold."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ringmpi import Mask, Sharding
from ringmpi.backends import get_backend
from ringmpi.comm.local import LocalRing
from ringmpi.core.problem import pose_problem
from ringmpi.core.rank_work import KeyWork
from ringmpi.passes.map_pass import MapOperands, MapPass, map_problem
from ringmpi.planner.map_memory import map_memory
from tests.planner.problems import Shape
from tests.planner.test_plan_and_run import ones, problems


def passes_of(problem, block):
    """The map passes of all ranks, after the loop, and what they were given."""
    posed, ring = map_problem(problem), LocalRing(problem.size)
    pairs = np.stack([KeyWork(posed, rank).pairs() for rank in range(ring.size)])
    backend = get_backend("numpy")
    passes = [MapPass(posed, rank, backend, pairs[rank], pairs > 0, block=block) for rank in range(ring.size)]
    given_to = []
    for rank in range(ring.size):
        mine = ones(problem, rank)
        given_to.append(MapOperands(mine.q, mine.saved.log_sum_exp, mine.k))
    both = zip(ring.ranks, passes, given_to, strict=True)
    ring.drive([one.loop(comm, mine, True) for comm, one, mine in both])
    return passes, given_to


@settings(max_examples=40)
@given(problems(), st.none() | st.integers(1, 50))
def test_memory_is_what_a_rank_holds(problem, block):
    for one, mine in zip(*passes_of(problem, block), strict=True):
        needs = map_memory(problem, one.itinerary, block, gradients=False)
        assert needs.slots == one.slots.nbytes
        assert needs.sums == one.sums.received.nbytes + one.sums.blocks.nbytes
        assert needs.inputs == mine.q.nbytes + mine.k.nbytes
        held = (array for index in one.itinerary.own for array in one.slots.payload(index))
        copies = [x for x in held if not any(np.shares_memory(x, y) for y in (mine.q, mine.log_sum_exp)) and x.size]
        assert needs.copied == sum(array.nbytes for array in copies)
        assert (needs.whole > 0) == (one.rank == 0 and problem.keys.length > 0)


def test_the_whole_map_is_on_rank_0_and_a_backward_pass_keeps_its_inputs():
    shapes = [Shape((1, 4, 1000, 64), np.dtype(np.float16)), *[Shape((1, 2, 1000, 64), np.dtype(np.float16))] * 2]
    sharding = Sharding.contiguous(1000, 2)
    problem = pose_problem(shapes, mask=Mask.causal(), queries=sharding, keys=sharding)
    first, second = (one.itinerary for one in passes_of(problem, 100)[0])
    alone, followed = (map_memory(problem, first, 100, gradients=gradients) for gradients in (False, True))
    assert alone.rows == 4 * 500 * (64 * 2 + 4)
    assert alone.whole == 4 * 10 * 10 * (8 + 4) + 4 * 1000 * 4
    assert map_memory(problem, second, 100, gradients=False).whole == 0
    assert followed.inputs - alone.inputs == 500 * 64 * 2 * (2 + 4)
    terms = (alone.rows, alone.inputs, alone.copied, alone.slots, alone.sums, alone.whole)
    assert alone.peak == sum(terms)
