"""Signals that ask a run to stop.

Where its state is kept they are remembered, not obeyed: when all ranks stop is for all ranks to decide. Elsewhere they
end the job, and say so.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

# What a user, a batch system before it ends a job, or a launcher that is stopped sends. SIGKILL leaves no choice.
CAUGHT = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """`received`: the number of the first signal that came; 0: none."""

    def __init__(self) -> None:
        self.received = 0
        self._interrupts = 0

    def catch(self, number: int, frame: FrameType | None = None) -> None:
        """Remember a signal.

        Raises
        ------
        KeyboardInterrupt
            On a second Ctrl-C: whoever presses it again does not want to wait for anything to be saved.
        """
        self.received = self.received or number
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            raise KeyboardInterrupt


@contextmanager
def caught_signals() -> Iterator[Signals]:
    """Within the block, signals that ask to stop are caught; to be called in the main thread."""
    signals = Signals()
    before = {number: signal.signal(number, signals.catch) for number in CAUGHT}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Terminated(KeyboardInterrupt):
    """SIGTERM came: as Ctrl-C, but from somebody who is not at the keyboard."""


@contextmanager
def terminated() -> Iterator[None]:
    """Within the block, SIGTERM raises Terminated where Python would end without a word. In the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # launchers send it twice; what follows takes some seconds
    raise Terminated(
        "ended by SIGTERM: a batch system's time limit, a cancelled job, or a user. With [checkpoint] in RUN.toml a "
        "run saves its state first."
    )
