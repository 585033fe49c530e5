"""How far a long run is: a bar on a terminal, lines in a log. Rank 0 tells, from between its kernel calls.

There is no thread: the rank draws its own bar, so nothing competes with MPI and the kernels.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from math import isfinite
from time import monotonic
from typing import NamedTuple

from ringmpi.numbers import seconds
from ringmpi.passes.timeline import RankTimeline

log = logging.getLogger("ringmpi")

SILENT_SECONDS = 5.0  # a shorter run says nothing, and two lines are at least this far apart
LINES = 10  # a line for each tenth of the pairs
LINE_SECONDS = 60.0  # and one a minute where a tenth takes longer
LOOK_SECONDS = 1.0
REDRAW_SECONDS = 0.2


class State(NamedTuple):
    """How far a rank is: `share` of its pairs after `elapsed` seconds, about `left` seconds of its pass to go."""

    share: float
    where: str
    elapsed: float
    left: float

    def __str__(self) -> str:
        if self.share >= 1:
            return "all of this rank's pairs attended"
        done = f"{int(100 * self.share)} % of this rank's pairs"
        return f"{done}, about {seconds(round(self.left))} left in this pass" if isfinite(self.left) else done


Display = Callable[[State], float]  # tells a state; returns after how many seconds it wants the next


class Progress:
    """Counts the pairs of one rank and has a display tell how far it is.

    Parameters
    ----------
    timeline : RankTimeline
        Says in which ring step the rank is.
    pairs : int
        What the rank has to attend to; > 0.
    display : Display
    clock : function
        Seconds.
    """

    def __init__(
        self, timeline: RankTimeline, pairs: int, display: Display, clock: Callable[[], float] = monotonic
    ) -> None:
        self._timeline, self._pairs, self._display, self._clock = timeline, pairs, display, clock
        self._done, self._told = 0, False
        self._start = clock()
        self._due = self._start + SILENT_SECONDS

    def attended(self, pairs: int) -> None:
        """Count the pairs of a kernel call. Nearly free unless something is to be told."""
        self._done += pairs
        now = self._clock()
        if now >= self._due or (self._told and self._done >= self._pairs):
            elapsed, share = now - self._start, self._done / self._pairs
            left = elapsed * (1 / share - 1) if share else float("inf")
            self._told = True
            self._due = now + self._tell(State(share, self._timeline.where(), elapsed, left))

    def _tell(self, state: State) -> float:
        try:
            return self._display(state)
        except OSError:  # the terminal is gone, the run goes on
            self._display = LogLines()
            return SILENT_SECONDS


class LogLines:
    """Lines for a batch log."""

    def __init__(self) -> None:
        self._share, self._elapsed = 0.0, 0.0

    def __call__(self, state: State) -> float:
        """Write a line if one is due."""
        if int(state.share * LINES) == int(self._share * LINES) and state.elapsed - self._elapsed < LINE_SECONDS:
            return LOOK_SECONDS
        self._share, self._elapsed = state.share, state.elapsed
        log.info("%s, %s", state.where, state)
        return SILENT_SECONDS


class Bar:
    """A bar for a terminal. It appears with the first state and is wiped away when `stack` is closed."""

    def __init__(self, stack: ExitStack) -> None:
        from rich import progress
        from rich.console import Console

        columns = progress.TextColumn("{task.description}"), progress.BarColumn(), "{task.fields[state]}"
        self._bar = progress.Progress(
            *columns, console=Console(file=sys.stderr), auto_refresh=False, transient=True, redirect_stdout=False
        )
        self._task = self._bar.add_task("", total=1.0, state="")
        self._stack = stack

    def __call__(self, state: State) -> float:
        """Redraw."""
        self._bar.update(self._task, completed=state.share, description=state.where, state=str(state))
        if self._bar.live.is_started:
            self._bar.refresh()
        else:
            self._stack.callback(self._wipe)
            self._bar.start()
        return REDRAW_SECONDS

    def _wipe(self) -> None:
        with suppress(OSError):  # of a terminal that is gone
            self._bar.stop()


@contextmanager
def shown(timeline: RankTimeline, pairs: int) -> Iterator[None]:
    """Show how far a pass is while in the `with` block; not where the log takes no INFO (--quiet, ranks but 0).

    Parameters
    ----------
    timeline : RankTimeline
        Of the pass that runs inside.
    pairs : int
        That this rank has to attend to.
    """
    with ExitStack() as stack:
        if pairs and log.isEnabledFor(logging.INFO):
            display = Bar(stack) if _can_redraw() else LogLines()
            timeline.watched_by(Progress(timeline, pairs, display).attended)
        yield


def _can_redraw() -> bool:
    """Whether stderr is a terminal that can redraw a line."""
    if sys.stderr is None or not sys.stderr.isatty():
        return False
    from rich.console import Console

    return Console(file=sys.stderr).is_interactive
