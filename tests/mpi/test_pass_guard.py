"""Orders during a pass: all ranks save and stop together, wherever each of them is, and leave no message under way."""

import signal
import time
from collections import defaultdict

import numpy as np
import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from ringmpi import Ring
from ringmpi.checkpoint.pass_guard import LOOK_SECONDS, PassGuard
from ringmpi.checkpoint.watch import REQUEST, Watch
from ringmpi.comm.orders import Notice, Order
from ringmpi.comm.protocol import Message
from ringmpi.comm.signals import Signals
from ringmpi.errors import RingError
from ringmpi.passes.guard import UNGUARDED

WORLD = MPI.COMM_WORLD
COUNTS = [1, 2, 3, 5, 7]
CALLS = 4  # kernel calls a ring step
CALL_SECONDS = 0.002
NEVER = 1e9
LARGE = 1 << 17  # float64: no library sends 1 MiB before the receiver asks for it


@pytest.fixture
def ring():
    with Ring(WORLD, timeout=30) as ring:
        yield ring


class Pass:
    """The ring loop as ring_loop.py has it, with work that takes time and counts; gradients hop two steps ahead.

    `slow`: rank -> how many times longer its calls take; `at`: (step, call) -> what happens there on this rank.
    """

    def __init__(self, ring, watch, *, anywhere=True, slow=None, at=None, failing=(), after=-1):
        self.ring, self.steps, self.anywhere = ring.transport, ring.size + 2, anywhere
        self.seconds = CALL_SECONDS * (slow or {}).get(ring.rank, 1)
        self.at, self.failing = at or {}, set(failing)
        self.calls, self.saves, self.under_way = 0, [], 0
        self.step = self.begun = -1
        self.guard = PassGuard(self.ring, watch, self.save, steps=self.steps, anywhere=anywhere, after=after)

    def save(self):
        """What each rank has done, as all ranks see it."""
        everyone = self.ring.exchange((self.step, self.calls, self.under_way), "saving")
        self.saves.append(everyone)
        return "no space on rank 1" if len(self.saves) - 1 in self.failing else None

    def run(self):
        self.ring.drive(self.loop(), lambda: f"ring step {self.step + 1} of {self.steps}", self.guard.look)
        self.guard.finish()
        return self

    def loop(self):
        right, left = (self.ring.rank + 1) % self.ring.size, (self.ring.rank - 1) % self.ring.size
        due = defaultdict(list)
        for step in range(self.steps):
            if not self.guard.goes_on(step):
                break
            self.step = step
            if step < self.steps - 2:
                arrays = np.full((2, LARGE), step, float)
                sends = [Message(right, 1, arrays[0])]
                due[step + 2].append((self.ring.start(sends, [Message(left, 1, arrays[1])]), arrays))
                self.under_way += 1
            for call in range(CALLS):
                if not self.guard.attends():
                    break
                time.sleep(self.seconds)
                self.calls += 1
                self.at.get((step, call), lambda: None)()
                self.guard.look()
            yield from self.landed(due.pop(step + 1, ()))
            if self.guard.settles():
                yield from self.landed([hop for flights in due.values() for hop in flights])
                due.clear()
                self.guard.settled()
        yield from self.landed([hop for flights in due.values() for hop in flights])

    def landed(self, hops):
        for flight, arrays in hops:
            yield flight
            assert (arrays[1] == arrays[0]).all()
            self.under_way -= 1

    @property
    def all_calls(self):
        return self.steps * CALLS


class Clock:
    """The time, and `ahead` of it."""

    ahead = 0.0

    def __call__(self):
        return time.monotonic() + self.ahead


def watch(signals=None, *, every=NEVER, asked=lambda: False, clock=time.monotonic):
    return Watch(signals or Signals(), every_seconds=every, asked=asked, clock=clock)


def same_on_all(item):
    return len(set(map(repr, WORLD.allgather(item)))) == 1


@pytest.mark.parallel(COUNTS)
@pytest.mark.parametrize("anywhere", [True, False])
def test_a_pass_that_nobody_disturbs_is_neither_saved_nor_stopped(ring, anywhere):
    done = Pass(ring, watch(), anywhere=anywhere, slow={0: 0, ring.size - 1: 3}).run()
    parallel_assert((done.calls, done.saves, done.guard.stopped) == (done.all_calls, [], None))


@pytest.mark.parallel([1, 2, 3, 7])
@pytest.mark.parametrize("anywhere", [True, False])
@pytest.mark.parametrize("slowest", [0, -1])
def test_time_passes_and_the_pass_is_saved_and_goes_on(ring, anywhere, slowest):
    slow = dict.fromkeys(range(ring.size), 0.1) | {slowest % ring.size: 4}
    done = Pass(ring, watch(every=0.02), anywhere=anywhere, slow=slow).run()
    parallel_assert(done.guard.stopped is None)
    parallel_assert(done.calls == done.all_calls)
    parallel_assert(len(done.saves) >= (2 if anywhere else 1))
    parallel_assert(same_on_all(done.saves))
    if not anywhere:  # at the end of one step, on all ranks, with nothing under way
        parallel_assert(all({(s, (s + 1) * CALLS, 0) for s, *_ in save} == set(save) for save in done.saves))


@pytest.mark.parallel(COUNTS)
@pytest.mark.parametrize("anywhere", [True, False])
@pytest.mark.parametrize("wanting", [0, -1])
@pytest.mark.parametrize("when", [(0, 0), (1, 2), (-1, CALLS - 1)])
def test_a_signal_on_any_rank_stops_all_at_one_step(ring, anywhere, wanting, when):
    """In the first step, midway, in the last step, and in the last call of all; the others are faster or slower."""
    signals, step = Signals(), when[0] % (ring.size + 2)
    at = {(step, when[1]): lambda: signals.catch(signal.SIGTERM)} if ring.rank == wanting % ring.size else {}
    slow = {wanting % ring.size: 4} if when[0] else {}
    done = Pass(ring, watch(signals), anywhere=anywhere, slow=slow, at=at).run()
    parallel_assert(done.guard.stopped == (signal.SIGTERM, None))
    parallel_assert(len(done.saves) == 1)
    parallel_assert(same_on_all((done.saves, done.step)))
    parallel_assert(done.calls == done.saves[0][ring.rank][1])  # no work after the save
    parallel_assert(done.under_way == 0)
    if not anywhere:
        parallel_assert(set(done.saves[0]) == {(done.step, (done.step + 1) * CALLS, 0)})


@pytest.mark.parallel(COUNTS)
@pytest.mark.parametrize("after", [0, 2])
def test_a_pass_is_not_saved_before_it_has_come_to_where_it_was(ring, after):
    """An order that comes at once: what was saved of a later step is in place already, and nothing older is whole."""
    done = Pass(ring, watch(asked=lambda: True), anywhere=False, after=after).run()
    parallel_assert(done.guard.stopped == (REQUEST, None))
    parallel_assert(same_on_all(done.step))
    parallel_assert(len(done.saves) == 1)
    parallel_assert(done.step >= after)


@pytest.mark.parallel(COUNTS)
def test_a_signal_after_the_last_look_stops_this_pass_not_the_next(ring):
    signals, clock = Signals(), Clock()
    running = Pass(ring, watch(signals, clock=clock))

    def last_call():
        clock.ahead = -1.0  # no look is due before the loop has ended
        if ring.rank == ring.size - 1:
            signals.catch(signal.SIGTERM)

    running.at = {(ring.size + 1, CALLS - 1): last_call}
    parallel_assert(running.run().guard.stopped == (signal.SIGTERM, None))


@pytest.mark.parallel([2, 3, 5])
@pytest.mark.parametrize("anywhere", [True, False])
def test_a_rank_that_waits_for_a_hop_hears_of_it(ring, anywhere):
    """Rank 0 is asked to stop while it waits for the last rank, which has been asleep in a call."""
    signals, clock = Signals(), Clock()
    sleeper, asked_at = ring.size - 1, []

    def asked():
        if not asked_at:
            asked_at.append(running.step)
        return True

    at = {(1, 2): lambda: time.sleep(0.2)} if ring.rank == sleeper else {}
    running = Pass(ring, watch(signals, asked=asked, clock=clock), anywhere=anywhere, at=at)
    clock.ahead = -0.1  # rank 0 has run as far as it can when it looks for the first time
    done = running.run()
    parallel_assert(done.guard.stopped == (REQUEST, None))
    parallel_assert(same_on_all((done.saves, done.step)))
    if ring.rank == 0 and anywhere:
        assert done.saves[0][sleeper][1] <= CALLS + 3  # not after another call than the one that it was in
        assert done.step == max(step for step, *_ in done.saves[0])


@pytest.mark.parallel([2, 3, 7])
@pytest.mark.parametrize("anywhere", [True, False])
def test_a_rank_that_is_done_still_serves(ring, anywhere):
    """Nobody waits for the last rank, which is not half done when the others have left their loops."""
    saved_by_done = []

    class Alone(Pass):
        def loop(self):
            for step in range(self.steps):
                if not self.guard.goes_on(step):
                    break
                self.step = step
                for _ in range(CALLS * 3 if self.ring.rank == self.ring.size - 1 else 0):
                    if self.guard.attends():
                        time.sleep(0.003)
                        self.calls += 1
                        self.guard.look()
                if self.guard.settles():
                    self.guard.settled()
            yield from ()

        def save(self):
            saved_by_done.append(self.step == self.steps - 1)
            return super().save()

    done = Alone(ring, watch(every=0.02), anywhere=anywhere).run()
    parallel_assert(same_on_all(done.saves))
    parallel_assert(len(done.saves) >= (2 if anywhere else 1))
    parallel_assert(saved_by_done[0] or ring.rank == ring.size - 1)
    stopped = Alone(ring, watch(asked=lambda: True), anywhere=anywhere).run()
    parallel_assert(stopped.guard.stopped == (REQUEST, None))


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("anywhere", [True, False])
def test_a_save_that_fails_is_told_and_the_run_goes_on_a_stop_that_fails_says_why(ring, anywhere, caplog):
    signals = Signals()
    at = {(2, 3): lambda: signals.catch(signal.SIGUSR1)} if ring.rank == 0 else {}
    done = Pass(ring, watch(signals, every=0.001), anywhere=anywhere, at=at, failing=range(1000)).run()
    parallel_assert(done.guard.stopped == (signal.SIGUSR1, "no space on rank 1"))
    parallel_assert(len(done.saves) >= 2)
    told = "goes on without having been saved: no space on rank 1" in caplog.text
    parallel_assert(told == (ring.rank == 0))


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("order", ["stop first", "save first"])
def test_a_save_and_a_stop_that_fall_due_at_once_both_leave_the_ranks_together(ring, order):
    signals = Signals()
    if order == "stop first":
        signals.catch(signal.SIGTERM)
    at = {(0, 3): lambda: signals.catch(signal.SIGTERM)} if ring.rank == 0 else {}  # after its first look
    done = Pass(ring, watch(signals, every=1e-6), anywhere=False, at=at).run()
    parallel_assert(done.guard.stopped == (signal.SIGTERM, None))
    parallel_assert(len(done.saves) == (1 if order == "stop first" else 2))
    parallel_assert(same_on_all(done.saves))


@pytest.mark.parallel(COUNTS)
def test_what_comes_too_late_for_one_pass_stops_the_next(ring):
    """A signal while the pass ends is told to rank 0, and nothing is left in the mail for the pass after it."""
    signals = Signals()
    mine = watch(signals)
    first = Pass(ring, mine, slow={0: 0})
    first.guard._watch.news = lambda: 0  # what comes while END is on its way
    first.run()
    del mine.news
    if ring.rank == ring.size - 1:
        signals.catch(signal.SIGINT)
    second = Pass(ring, mine).run()
    parallel_assert(first.guard.stopped is None)
    parallel_assert(second.guard.stopped == (signal.SIGINT, None))
    third = Pass(ring, watch()).run()
    parallel_assert(third.calls == third.all_calls)


@pytest.mark.parallel([2, 3])
def test_a_rank_that_never_ends_its_pass_is_named_with_its_node():
    """Rank 0 knows who has not reported; the others leave it the time to say so."""
    with Ring(WORLD, timeout=0.3) as ring:
        guard = PassGuard(ring.transport, watch(), lambda: None, steps=1, anywhere=True)
        if ring.rank == 0:
            node = MPI.Get_processor_name()
            with pytest.raises(RingError, match=rf"rank 1 \(node {node}\) did not answer .* the end of a pass"):
                guard.finish()
        elif ring.rank == 1:
            time.sleep(0.5)
        orders = guard._orders  # the job would end here; to go on with the tests, say the last words
        if ring.rank:
            orders.report(Notice.LEFT)
        else:
            orders.give(Order.END)
        while not orders.closed():
            list(orders.reports()) if ring.rank == 0 else orders.order()


@pytest.mark.parallel([1, 3])
def test_looking_costs_microseconds(ring):
    """A look that is too early reads a clock; one that is not asks MPI once."""
    clock = Clock()
    guard = PassGuard(ring.transport, watch(clock=clock), lambda: None, steps=1, anywhere=True)
    rounds, began = 2000, time.thread_time()  # a library may yield the core to others: that time is not ours
    for _ in range(rounds):
        guard.look()
    early, began = (time.thread_time() - began) / rounds, time.thread_time()
    for _ in range(rounds):
        clock.ahead += LOOK_SECONDS
        guard.look()
    full = (time.thread_time() - began) / rounds
    guard.finish()
    parallel_assert(early < 50e-6)
    parallel_assert(full < 500e-6)


@pytest.mark.parallel([1])
def test_nothing_is_asked_of_a_pass_without_checkpoints():
    assert UNGUARDED.goes_on(3)
    assert UNGUARDED.attends()
    assert not UNGUARDED.look()
    assert not UNGUARDED.settles()
