"""What one rank knows of reasons to save or to stop: signals, a user's request, the clock. It outlives the passes."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable

from ringmpi.comm.signals import Signals

log = logging.getLogger("ringmpi")
ASK_SECONDS = 1.0  # between two looks for a request: a look at a file, which a network file system may make slow
REQUEST = 0  # a reason to stop that is no signal


class Watch:
    """One a run and rank.

    Parameters
    ----------
    signals : Signals
    every_seconds : float
        From the end of one save to the beginning of the next.
    asked : function () -> bool
        Whether a user asks the run to stop; rank 0 asks about once a second.
    clock : function () -> float
        Seconds. The guards of the passes go by it too.
    """

    def __init__(
        self,
        signals: Signals,
        *,
        every_seconds: float,
        asked: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._signals, self._every, self._asked, self.clock = signals, every_seconds, asked, clock
        self._told = False
        self._reason: int | None = None
        self._saved = self._next_question = clock()

    def news(self) -> int:
        """The signal that came to this rank, once; 0: none, or told before."""
        if self._told or not self._signals.received:
            return 0
        self._told = True
        return self._signals.received

    def hear(self, number: int) -> None:
        """A signal came to some rank. On rank 0."""
        if self._reason is None:
            self._reason = number
            name = signal.Signals(number).name
            log.info("%s: saving and stopping at the next kernel call; Ctrl-C twice ends at once", name)

    def reason_to_stop(self) -> int | None:
        """A signal, or REQUEST; None: there is no reason. On rank 0."""
        if self._reason is None and (now := self.clock()) >= self._next_question:
            self._next_question = now + ASK_SECONDS
            if self._asked():
                self._reason = REQUEST
        return self._reason

    def time_to_save(self) -> bool:
        """Whether the last save is long enough ago."""
        return self.clock() - self._saved >= self._every

    def saved(self) -> None:
        """A save has ended, well or not."""
        self._saved = self.clock()
