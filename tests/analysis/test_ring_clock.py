"""The clock of a pass gives back what was, and foretells what would have been, of rings whose truth is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi.analysis.ring_clock import ring_clock
from ringmpi.core.schedule import SCHEDULES
from tests.analysis.simulated_ring import seconds, simulate


@st.composite
def rings(draw):
    """Seconds of attending [ranks, ranks] and of transfers [ranks]."""
    ranks = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.0, 0.1, 1.0]))
    transfers = draw(st.sampled_from([0.0, 0.1, 3.0]))
    attend = 1 + spread * rng.random((ranks, ranks))
    return attend, transfers * rng.random(ranks)


@given(rings())
def test_the_pass_as_it_was_is_given_back(ring):
    timeline = simulate(*ring)
    clock = ring_clock(timeline, SCHEDULES["ring"])
    assert clock.seconds == pytest.approx(seconds(timeline), rel=1e-9)


@given(rings(), st.integers(0, 5), st.sampled_from([1.2, 2.0, 5.0]))
def test_without_transfers_a_faster_rank_gives_exactly_the_pass_that_is_simulated(ring, rank, factor):
    attend, _ = ring
    nothing = np.zeros(len(attend))
    faster = attend.copy()
    slow = attend.copy()
    slow[rank % len(attend)] *= factor
    clock = ring_clock(simulate(slow, nothing), SCHEDULES["ring"])
    assert clock.seconds_with(faster) == pytest.approx(seconds(simulate(faster, nothing)), rel=1e-9)


@given(rings(), st.integers(0, 5), st.sampled_from([1.2, 2.0, 5.0]))
def test_with_transfers_it_is_off_by_no_more_than_they_take(ring, rank, factor):
    attend, transfer = ring
    slow = attend.copy()
    slow[rank % len(attend)] *= factor
    found = ring_clock(simulate(slow, transfer), SCHEDULES["ring"]).seconds_with(attend)
    truth = seconds(simulate(attend, transfer))
    assert abs(found - truth) <= transfer.max() * attend.shape[1]


def test_a_look_at_a_hop_that_had_landed_holds_up_nobody():
    """So it is of every hop of a real run: some microseconds of waiting, which say nothing of when it landed."""
    slow = np.array([[1.0, 1], [1.5, 1.5]])
    clock = ring_clock(simulate(slow, np.zeros(2), look=5e-5), SCHEDULES["ring"])
    assert clock.seconds == pytest.approx(3.00005)
    assert clock.seconds_with(np.ones((2, 2))) == pytest.approx(2, abs=1e-3)
    assert not clock.exposed.any()


def test_exposed_is_what_lateness_does_not_explain():
    attend = np.ones((3, 3))
    late, links = attend.copy(), np.array([0.0, 1.5, 0.0])
    late[1] = 4.0
    assert ring_clock(simulate(late, np.zeros(3)), SCHEDULES["ring"]).exposed.max() == 0
    exposed = ring_clock(simulate(attend, links), SCHEDULES["ring"]).exposed
    assert exposed[1, 0] == pytest.approx(0.5)
    assert exposed[:, -1].tolist() == [0, 0, 0]


def test_in_an_all_gather_nobody_is_held_up_by_a_later_step_of_another():
    attend = np.ones((3, 3))
    attend[0] = 2.0
    clock = ring_clock(simulate(attend, np.zeros(3)), SCHEDULES["all-gather"])
    assert not clock.from_before.any()
    assert clock.seconds == pytest.approx(6)


def test_a_pass_of_no_steps_takes_no_time():
    nothing = np.zeros((2, 0))
    assert ring_clock(simulate(nothing, np.zeros(2)), SCHEDULES["ring"]).seconds == 0
