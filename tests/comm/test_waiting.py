"""A wait ends when what it is for has come, or after its seconds; also where clocks and processes stand still."""

import pytest

from ringmpi.comm import waiting
from ringmpi.comm.waiting import comes


class Clock:
    """Time that passes in sleeps only: so many seconds in each."""

    def __init__(self, *sleeps):
        self.now, self._sleeps = 0.0, iter(sleeps)

    def monotonic(self):
        return self.now

    def sleep(self, _):
        self.now += next(self._sleeps)


@pytest.fixture
def clock(monkeypatch):
    def passing(*sleeps):
        found = Clock(*sleeps)
        monkeypatch.setattr(waiting, "time", found)
        return found

    return passing


def after(polls):
    """What has landed after so many polls that find nothing."""
    answers = iter([False] * polls + [True])
    return lambda: next(answers)


def test_what_has_come_is_not_waited_for(clock):
    clock()
    assert comes(after(0), 1.0)


def test_a_wait_ends_after_its_seconds(clock):
    passed = clock(*[0.5] * 100)
    assert not comes(after(100), 5.0)
    assert passed.now == 5.5


def test_without_a_limit_it_goes_on(clock):
    clock(*[0.5] * 1000)
    assert comes(after(1000), 0)


def test_a_job_that_was_suspended_blames_nobody(clock):
    """Its clock has run on; the ranks that it waits for stood still as it did."""
    clock(0.1, 3600.0, 0.1, 7200.0, 0.1)
    assert comes(after(5), 5.0)


def test_a_look_that_did_something_begins_the_wait_anew(clock):
    passed = clock(*[0.5] * 100)
    looks = iter([False] * 8 + [True] + [False] * 100)

    def look():
        found = next(looks)
        passed.now += 40.0 * found
        return found

    assert not comes(after(100), 5.0, look)
    assert passed.now == 4.5 + 40.0 + 5.5
