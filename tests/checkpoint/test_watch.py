"""What a rank knows of reasons to save or to stop."""

import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

from ringmpi.checkpoint.watch import REQUEST, Watch
from ringmpi.comm.signals import CAUGHT, REQUESTS, Signals, caught_signals, held_back, ignore_requests, terminated


@pytest.fixture(autouse=True)
def _handlers():
    """As they were, after each test."""
    before = {number: signal.getsignal(number) for number in CAUGHT}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Clock:
    """Seconds that pass when told to."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("number", CAUGHT)
def test_a_signal_is_remembered_and_the_handlers_come_back(number):
    """But for signals that a run may get too late, which would end the job although its result is there."""
    before = {caught: signal.getsignal(caught) for caught in CAUGHT}
    with caught_signals() as signals:
        assert signals.received == 0
        os.kill(os.getpid(), number)
        assert signals.received == number
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == number  # the first says why
    for late in REQUESTS:
        os.kill(os.getpid(), late)
    assert {caught: signal.getsignal(caught) for caught in CAUGHT} == before | dict.fromkeys(REQUESTS, signal.SIG_IGN)


WHILE_MPI_STARTS = """
import os, signal, sys
from ringmpi.comm.signals import caught_signals, held_back

number = int(sys.argv[1])
with held_back():
    os.kill(os.getpid(), number)
    signal.signal(number, signal.SIG_DFL)
with caught_signals() as signals:
    sys.exit(signals.received != number)
"""


@pytest.mark.parametrize("number", REQUESTS)
def test_a_signal_while_mpi_starts_is_remembered(number):
    """MPICH sets a handler there that drops it. In a process of one thread, as a run is then."""
    assert subprocess.run([sys.executable, "-c", WHILE_MPI_STARTS, str(int(number))], timeout=60).returncode == 0


@pytest.mark.parametrize("number", REQUESTS)
def test_a_signal_between_the_start_of_mpi_and_the_configuration_is_remembered(number):
    with held_back():
        pass
    os.kill(os.getpid(), number)
    with caught_signals() as signals:
        assert signals.received == number


@pytest.mark.parametrize("number", REQUESTS)
def test_where_no_state_is_kept_a_request_is_ignored_and_said_to_be(number, caplog):
    caplog.set_level(logging.INFO, logger="ringmpi")
    with held_back():
        pass
    os.kill(os.getpid(), number)
    ignore_requests()
    os.kill(os.getpid(), number)
    name = signal.Signals(number).name
    said = f"{name} is ignored: without [checkpoint] in RUN.toml a run has no state to save"
    assert [record.getMessage() for record in caplog.records] == [said, said]


@pytest.mark.parametrize("caught", [caught_signals, terminated])
def test_a_handler_that_was_set_in_c_cannot_come_back(caught, monkeypatch):
    """Python then says None, which it does not take."""
    real = signal.signal
    monkeypatch.setattr(signal, "signal", lambda number, handler: real(number, handler) and None)
    with caught():
        pass
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("caught", [caught_signals, terminated])
def test_in_another_thread_no_signal_is_caught(caught):
    found = []

    def enter():
        with caught():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(timeout=10)
    assert found == [signal.getsignal(signal.SIGTERM)]


def test_a_second_interrupt_ends_at_once():
    with caught_signals():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_is_news_once(caplog):
    signals = Signals()
    watch = Watch(signals, every_seconds=1, asked=lambda: False)
    assert watch.news() == 0
    signals.catch(signal.SIGUSR1)
    assert (watch.news(), watch.news()) == (signal.SIGUSR1, 0)
    assert watch.reason_to_stop() is None  # rank 0 decides on what it is told
    caplog.set_level(logging.INFO)
    watch.hear(signal.SIGUSR1)
    watch.hear(signal.SIGTERM)
    assert watch.reason_to_stop() == signal.SIGUSR1
    assert caplog.messages == ["SIGUSR1: saving and stopping at the next kernel call; Ctrl-C twice ends at once"]


def test_a_request_is_looked_for_once_a_second_and_not_forgotten():
    clock = Clock()
    answers = [False, True]
    watch = Watch(Signals(), every_seconds=1, asked=lambda: answers.pop(0), clock=clock)
    assert watch.reason_to_stop() is None
    assert watch.reason_to_stop() is None
    assert answers == [True]
    clock.now += 1
    assert watch.reason_to_stop() == REQUEST
    clock.now += 9
    watch.hear(signal.SIGTERM)
    assert watch.reason_to_stop() == REQUEST, "the first says why"


def test_time_counts_from_the_end_of_the_last_save():
    clock = Clock()
    watch = Watch(Signals(), every_seconds=10, asked=lambda: False, clock=clock)
    clock.now += 9
    assert not watch.time_to_save()
    clock.now += 1
    assert watch.time_to_save()
    clock.now += 5  # the save takes longer than usual
    watch.saved()
    clock.now += 9
    assert not watch.time_to_save()
