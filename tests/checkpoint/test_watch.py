"""What a rank knows of reasons to save or to stop."""

import os
import signal

import pytest

from ringmpi.checkpoint import watch as module
from ringmpi.checkpoint.watch import REQUEST, Watch
from ringmpi.comm.signals import CAUGHT, Signals, caught_signals


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("number", CAUGHT)
def test_a_signal_is_remembered_and_the_handlers_come_back(number):
    before = [signal.getsignal(caught) for caught in CAUGHT]
    with caught_signals() as signals:
        assert signals.received == 0
        os.kill(os.getpid(), number)
        assert signals.received == number
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == number  # the first says why
    assert [signal.getsignal(caught) for caught in CAUGHT] == before


def test_a_second_interrupt_ends_at_once():
    with caught_signals():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_is_news_once():
    signals = Signals()
    watch = Watch(signals, every_seconds=1, asked=lambda: False)
    assert watch.news() == 0
    signals.catch(signal.SIGUSR1)
    assert (watch.news(), watch.news()) == (signal.SIGUSR1, 0)
    assert watch.reason_to_stop() is None  # rank 0 decides on what it is told
    watch.hear(signal.SIGUSR1)
    watch.hear(signal.SIGTERM)
    assert watch.reason_to_stop() == signal.SIGUSR1


def test_a_request_is_looked_for_once_a_second_and_not_forgotten(clock):
    answers = [False, True]
    watch = Watch(Signals(), every_seconds=1, asked=lambda: answers.pop(0))
    assert watch.reason_to_stop() is None
    assert watch.reason_to_stop() is None
    assert answers == [True]
    clock[0] += 1
    assert watch.reason_to_stop() == REQUEST
    clock[0] += 9
    assert watch.reason_to_stop() == REQUEST


def test_time_counts_from_the_end_of_the_last_save(clock):
    watch = Watch(Signals(), every_seconds=10, asked=lambda: False)
    clock[0] += 9
    assert not watch.time_to_save()
    clock[0] += 1
    assert watch.time_to_save()
    clock[0] += 5  # the save takes longer than usual
    watch.saved()
    clock[0] += 9
    assert not watch.time_to_save()
