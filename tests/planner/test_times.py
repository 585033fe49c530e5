"""Predicted times: a pass is as long as its longest chain of work and hops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi import Mask
from ringmpi.core.itinerary import plan_itinerary
from ringmpi.core.rank_work import RankWork
from ringmpi.planner.balance import key_bytes
from ringmpi.planner.machines import Rates
from ringmpi.planner.plan import make_plan
from tests.planner.problems import problem

SCHEDULES = ["ring", "bidirectional", "all-gather", "broadcast"]


def simulated(asked, rates):
    """The same rules, message by message from the itineraries: when does each rank start each step?"""
    pairs = np.stack([RankWork(asked, rank).pairs() for rank in range(asked.size)])
    plans = [plan_itinerary(asked.schedule, asked.pieces, pairs > 0, rank) for rank in range(asked.size)]
    second = 2 * (asked.heads.head_dim + asked.heads.value_dim) * asked.heads.query_slabs / rates.flops
    steps = len(plans[0].steps)
    starts = np.zeros((steps + 1, asked.size))
    for step in range(steps):
        for plan in plans:
            work = sum(int(pairs[plan.rank, piece]) for piece in plan.steps[step].visits)
            starts[step + 1, plan.rank] = max(starts[step + 1, plan.rank], starts[step, plan.rank] + work * second)
        for plan in plans:
            for sent_at, hop in ((s.index, hop) for s in plan.steps for hop in s.hops if hop.due == step + 1):
                nbytes = sum(asked.pieces[piece].length for piece, _ in hop.receives) * key_bytes(asked)
                for _, peer in hop.receives:
                    left = max(starts[sent_at, plan.rank], starts[sent_at, peer])
                    lands = left + (hop.due - sent_at) * nbytes / rates.bandwidth
                    for end in (plan.rank, peer):
                        starts[step + 1, end] = max(starts[step + 1, end], lands)
    return starts[-1].max()


@given(
    st.integers(1, 6),
    st.sampled_from(["ring", "all-gather", "broadcast"]),
    st.sampled_from(["contiguous", "zigzag", "striped"]),
    st.sampled_from([Mask.full(), Mask.causal(), Mask.window(9, 0), Mask.keys(3, 20)]),
    st.floats(-3, 3),
)
def test_the_total_is_that_of_a_simulation_message_by_message(ranks, schedule, sharding, mask, exponent):
    asked = problem(61, ranks, schedule=schedule, sharding=sharding, mask=mask)
    rates = Rates(1e9, 1e9 * 10**exponent, "")
    assert make_plan(asked, rates).times.total == pytest.approx(simulated(asked, rates), rel=1e-9)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_fast_network_leaves_the_work_of_the_busiest_rank(schedule):
    plan = make_plan(problem(4_000, 4, schedule=schedule), Rates(1e9, 1e15, ""))
    busiest = plan.tables.pairs.sum(1).max() * plan.flops_a_pair / 1e9
    assert plan.times.total == pytest.approx(busiest, rel=1e-6)
    assert plan.times.exposed.sum() < 1e-6 * plan.times.total  # a broadcast begins with hops alone


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name != "broadcast"])
def test_a_slow_network_leaves_the_bytes(schedule):
    plan = make_plan(problem(4_000, 4, mask=Mask.full(), schedule=schedule), Rates(1e18, 1e6, ""))
    assert plan.times.total == pytest.approx(plan.bytes_sent / 4 / 1e6, rel=1e-6)


def test_a_broadcast_of_many_blocks_is_nearly_as_fast_as_a_ring():
    """Blocks follow each other from hand to hand; only the first one's way is extra."""
    asked = problem(256_000, 4, mask=Mask.full(), schedule="broadcast")
    plan = make_plan(asked, Rates(1e18, 1e6, ""))
    assert plan.tables.steps == 4 * 125 + 3
    assert 1 < plan.times.total / (plan.bytes_sent / 4 / 1e6) < 1.36  # each rank sends 3/4 of all keys


def test_one_rank_waits_for_nothing():
    plan = make_plan(problem(1_000, 1), Rates(1e9, 1.0, ""))
    assert plan.times.total == pytest.approx(plan.flops / 1e9)
