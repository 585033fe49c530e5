"""Signals that ask a run to stop.

Where its state is kept they are remembered, not obeyed: when all ranks stop is for all ranks to decide. Elsewhere
SIGTERM and Ctrl-C end the job, and say so; SIGUSR1 and SIGUSR2, which ask for a save, are ignored.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

# What a user, a batch system before it ends a job, or a launcher that is stopped sends. SIGKILL leaves no choice.
CAUGHT = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
# They ask for a save, and would kill. Ignored where no state is kept, and once the run has ended: its result is there.
REQUESTS = (signal.SIGUSR1, signal.SIGUSR2)

log = logging.getLogger("ringmpi")


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

    def go_on_from(self, handler: Any) -> None:
        """Take over what came before, if `handler` is that of other Signals."""
        before = getattr(handler, "__self__", None)
        if isinstance(before, Signals):
            self.received = self.received or before.received


@contextmanager
def held_back() -> Iterator[None]:
    """Within the block, SIGUSR1 and SIGUSR2 wait; from its end on they are remembered. In the main thread only.

    For the start of MPI: a library may set a handler of its own there, as MPICH does, which drops SIGUSR1.
    """
    if not _in_main_thread():
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS)  # of threads that start in the block, too
    try:
        yield
    finally:
        early = Signals()
        for number in REQUESTS:
            signal.signal(number, early.catch)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, REQUESTS)


def ignore_requests() -> None:
    """Ignore SIGUSR1 and SIGUSR2 from now on, and say so: there is no state to be saved. In the main thread only."""
    if not _in_main_thread():
        return
    early = Signals()
    for number in REQUESTS:
        early.go_on_from(signal.signal(number, _ignored))
    if early.received:
        _ignored(early.received)


@contextmanager
def caught_signals() -> Iterator[Signals]:
    """Within the block, signals that ask to stop are caught; in the main thread only, elsewhere none is.

    What `held_back` has remembered came within it, too. After it, SIGUSR1 and SIGUSR2 are ignored, and the others do
    what they did before.
    """
    signals = Signals()
    if not _in_main_thread():
        yield signals
        return
    before = {number: signal.signal(number, signals.catch) for number in CAUGHT}
    for handler in before.values():
        signals.go_on_from(handler)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            _restore(number, signal.SIG_IGN if number in REQUESTS else handler)


class Terminated(KeyboardInterrupt):
    """SIGTERM came: as Ctrl-C, but from somebody who is not at the keyboard."""


@contextmanager
def terminated() -> Iterator[None]:
    """Within the block, SIGTERM raises Terminated where Python would end without a word. In the main thread only."""
    if not _in_main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        _restore(signal.SIGTERM, before)


def _in_main_thread() -> bool:
    """Where alone Python lets signals be handled."""
    return threading.current_thread() is threading.main_thread()


def _restore(number: int, handler: Any) -> None:
    """None is a handler that was set in C: it cannot come back."""
    signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _ignored(number: int, frame: FrameType | None = None) -> None:
    name = signal.Signals(number).name
    log.info("%s is ignored: without [checkpoint] in RUN.toml a run has no state to save", name)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # launchers send it twice; what follows takes some seconds
    raise Terminated(
        "ended by SIGTERM: a batch system's time limit, a cancelled job, or a user. With [checkpoint] in RUN.toml a "
        "run saves its state first."
    )
