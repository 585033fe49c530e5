"""What is told of a long run, when, and where: with a clock of our own."""

import logging
import os
import pty
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from ringmpi.core.itinerary import Step
from ringmpi.job import progress
from ringmpi.job.progress import LogLines, Progress, State
from ringmpi.passes.timeline import RankTimeline

ROOT = Path(__file__).parents[2]


class Clock:
    """Seconds that pass when told to."""

    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress.Progress.__init__, "__defaults__", (clock,))
    return clock


@pytest.fixture
def info(caplog):
    caplog.set_level(logging.INFO, logger="ringmpi")
    return caplog


def attend(clock, timeline, seconds, calls=1000, steps=10):
    """A pass of `calls` kernel calls of one pair, `seconds` in all."""
    for call in range(calls):
        step = Step(call * steps // calls, (), ())
        with timeline.attending(step):
            clock.now += seconds / calls
            timeline.attended(step, 1)


def told(info, clock, seconds, calls=1000):
    """The lines of such a pass, with the second at which each was written."""
    timeline, times, emit = RankTimeline(10), [], info.handler.emit
    info.handler.emit = lambda record: (times.append(clock.now - Clock.now), emit(record))
    try:
        with progress.shown(timeline, calls):
            attend(clock, timeline, seconds, calls)
    finally:
        info.handler.emit = emit
    assert timeline.pairs_attended.sum() == calls
    return list(zip(times, info.messages, strict=True))


@pytest.mark.parametrize("seconds", [0.1, 4.9])
def test_a_short_run_says_nothing(info, clock, seconds):
    assert told(info, clock, seconds) == []


def test_a_run_of_minutes_has_a_line_for_each_tenth(info, clock):
    lines = told(info, clock, 300)
    assert [time for time, _ in lines] == pytest.approx(range(30, 301, 30), abs=1.5)
    assert lines[2][1] == "ring step 4 of 10, 30 % of this rank's pairs, about 209 s left in this pass"
    assert lines[8][1] == "ring step 10 of 10, 90 % of this rank's pairs, about 30 s left in this pass"
    assert lines[9][1] == "ring step 10 of 10, all of this rank's pairs attended"


def test_a_run_of_hours_has_a_line_a_minute(info, clock):
    times = [time for time, _ in told(info, clock, 7200, calls=7200)]
    assert 115 < len(times) < 135
    assert max(later - earlier for earlier, later in zip(times, times[1:], strict=False)) < 62


def test_lines_are_five_seconds_apart_but_the_last(info, clock):
    times = [time for time, _ in told(info, clock, 20)]
    assert times[0] >= 5
    assert min(later - earlier for earlier, later in zip(times[:-2], times[1:-1], strict=True)) >= 5
    assert times[-1] == pytest.approx(20)


@pytest.mark.parametrize("level", [logging.WARNING, logging.ERROR])
def test_quiet_and_the_other_ranks_say_nothing(info, clock, level):
    info.set_level(level, logger="ringmpi")
    timeline = RankTimeline(10)
    with progress.shown(timeline, 1000):
        attend(clock, timeline, 300)
    assert info.messages == []


def test_a_rank_without_pairs_says_nothing(info, clock):
    timeline = RankTimeline(2)
    with progress.shown(timeline, 0):
        clock.now += 1000
        timeline.attended(Step(0, (), ()), 0)
    assert info.messages == []


def test_the_estimate_is_of_the_pairs_not_of_the_ring_steps(clock):
    states = []
    timeline = RankTimeline(4)
    watch = Progress(timeline, 80, lambda state: states.append(state) or 0.0, clock)
    clock.now += 10
    watch.attended(20)
    assert (states[0].share, states[0].elapsed, states[0].left) == (0.25, 10.0, 30.0)


def test_a_display_is_called_when_it_wants_to_be(clock):
    times = []
    watch = Progress(RankTimeline(1), 1000, lambda state: times.append(state.elapsed) or 7.0, clock)
    for _ in range(30):
        clock.now += 1
        watch.attended(1)
    assert times == [5, 12, 19, 26]


def test_a_kernel_call_without_pairs_is_no_division_by_zero(info, clock):
    watch = Progress(RankTimeline(1), 10, LogLines(), clock)
    clock.now += 70
    watch.attended(0)
    assert info.messages == ["ring step 1 of 1, 0 % of this rank's pairs"]


def test_nearly_done_is_not_said_to_be_done():
    assert str(State(0.9999, "", 10, 0.001)).startswith("99 %")


def test_the_bar_is_drawn_redrawn_and_wiped_away(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with ExitStack() as stack:
        bar = progress.Bar(stack)
        assert capsys.readouterr().err == ""
        assert bar(State(0.25, "ring step 1 of 2", 10, 30)) == progress.REDRAW_SECONDS
        bar(State(0.5, "ring step 2 of 2", 20, 20))
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "ring step 1 of 2" in seen.err
    assert "50 % of this rank's pairs, about 20 s left in this pass" in seen.err
    assert seen.err.endswith("\x1b[2K")


PROGRAM = """
import logging, time
from ringmpi.job import progress
from ringmpi.core.itinerary import Step
from ringmpi.passes.timeline import RankTimeline
progress.SILENT_SECONDS = 0.1
logging.basicConfig(level=logging.INFO, format="ringmpi: %(message)s")
timeline = RankTimeline(2)
with progress.shown(timeline, 8):
    for call in range(8):
        time.sleep(0.06)
        timeline.attended(Step(0, (), ()), 1)
print("the result")
"""


def terminal():
    """Both ends of one."""
    try:
        return pty.openpty()
    except OSError as error:
        pytest.skip(f"this machine has no pseudo-terminals: {error}")


def started(stderr, **environment):
    """PROGRAM, at work."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"} | environment,
    )


def on_terminal(**environment):
    """What PROGRAM writes to a terminal as its stderr, and what to stdout."""
    leader, follower = terminal()
    child = started(follower, **environment)
    os.close(follower)
    seen = b""
    while True:
        try:
            part = os.read(leader, 4096)
        except OSError:  # Linux says so when the other end is closed
            break
        if not part:
            break
        seen += part
    os.close(leader)
    out, _ = child.communicate(timeout=30)
    assert child.returncode == 0
    return seen.decode(), out.decode()


def test_a_terminal_gets_a_bar_and_stdout_stays_clean():
    seen, out = on_terminal(TERM="xterm")
    assert "\x1b[?25l" in seen
    assert "\u2501" in seen
    assert "ring step 1 of 2" in seen
    assert "all of this rank's pairs attended" in seen
    assert out == "the result\n"


def test_a_terminal_that_goes_away_does_not_end_the_run():
    """A session over ssh that is closed; the run was told to outlive it."""
    leader, follower = terminal()
    child = started(follower, TERM="xterm")
    os.close(follower)
    while b"ring step" not in os.read(leader, 4096):
        pass
    os.close(leader)
    out, _ = child.communicate(timeout=30)
    assert (child.returncode, out) == (0, b"the result\n")


def test_a_dumb_terminal_gets_lines():
    seen, _ = on_terminal(TERM="dumb")
    assert "\x1b" not in seen
    assert "ringmpi: ring step 1 of 2, " in seen


def test_a_pipe_gets_lines_even_where_colours_are_forced():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=30,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm", "FORCE_COLOR": "1"},
    )
    assert "\x1b" not in done.stderr
    assert "ringmpi: ring step 1 of 2, " in done.stderr
    assert done.stdout == "the result\n"
