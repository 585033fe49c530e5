"""Messages move while a rank computes, if it only looks at them now and then."""

import time

import numpy as np
import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from ringmpi import Ring
from ringmpi.comm import mpi
from ringmpi.core.itinerary import Hop, Itinerary, Step
from ringmpi.passes.ring_loop import ring_loop
from ringmpi.passes.slots import Form, Load, Slots
from ringmpi.passes.timeline import RankTimeline

WORLD = MPI.COMM_WORLD
POSITIONS = 1 << 21  # 16 MiB in float64: no MPI library sends that before the receiver asks for it
PATIENCE_SECONDS = 20.0


@pytest.mark.parallel([2, 3, 4])
def test_a_large_hop_lands_while_the_kernel_runs():
    """The kernel ends when nothing is under way any more; without its looks it would go on until it loses patience."""
    with Ring(WORLD, timeout=60) as ring:
        hop = Hop(1, ((0, (ring.rank + 1) % ring.size),), ((1, (ring.rank - 1) % ring.size),))
        steps = (Step(0, (hop,), (0,)), Step(1, (), (1,)))
        slots = Slots({0: 0, 1: 1}, (POSITIONS,) * 2, [Load(POSITIONS, 1)] * 2, [Form(1, 1, 1, np.dtype("f8"))])
        for array in slots.payload(0):
            array[...] = ring.rank
        timeline, found, overdue = RankTimeline(2), [], []

        def attend(piece, payload, poll):
            give_up = time.monotonic() + PATIENCE_SECONDS
            seen = -1.0
            while not piece and timeline.flight_seconds[0] != seen:  # as long as each look finds that it still flies
                seen = float(timeline.flight_seconds[0])
                time.sleep(0.001)
                poll()
                overdue.append(time.monotonic() > give_up)
            found.append(np.unique(payload[0]).tolist())
            yield 1

        itinerary = Itinerary(ring.rank, steps, {}, (), ())
        ring.transport.drive(ring_loop(itinerary, ring.transport, slots, attend, timeline=timeline))
        parallel_assert(not any(overdue))
        parallel_assert(found == [[ring.rank], [(ring.rank - 1) % ring.size]])
        parallel_assert(timeline.wait_seconds[0] < timeline.flight_seconds[0])


class Flight(mpi._MPIFlight):
    """Tests that take the given times; it has landed with the last one."""

    def __init__(self, seconds, clock):
        super().__init__([], [])
        self._seconds, self._clock, self.tests = seconds, clock, 0

    def _test(self):
        self._clock[0] += self._seconds[self.tests]
        self.tests += 1
        return self.tests == len(self._seconds)


@pytest.mark.parallel([1])
def test_a_look_goes_on_while_it_moves_something(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(mpi.time, "thread_time", lambda: clock[0])
    nothing_moves, first = [2, 2, 2], 50
    flight = Flight([*nothing_moves, first, 15, 30, 5, 25, 2, 2, 2], clock)
    looks = []
    while not flight.landed():
        looks.append(flight.tests)
    assert looks == [3, 10]  # 30 and 25 moved something; neither 15 nor 5, one alone, ended the look
    assert flight.tests == 11


@pytest.mark.parallel([1])
def test_a_clock_that_stands_still_once_does_not_make_all_else_look_slow(monkeypatch):
    """It does on virtual machines: without this, a rank would look for ever, and its deadline would never come."""
    clock = [0.0]
    monkeypatch.setattr(mpi.time, "thread_time", lambda: clock[0])
    flight = Flight([2, 0, 2, 2, 2, 2, 2, 2, 2], clock)
    looks = []
    while not flight.landed():
        looks.append(flight.tests)
    assert looks == [3, 6]


@pytest.mark.parallel([1])
def test_a_look_ends_whatever_the_clock_says(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(mpi.time, "thread_time", lambda: clock[0])
    assert not Flight([1] + [100] * 2 * mpi.MOST_TESTS, clock).landed()
