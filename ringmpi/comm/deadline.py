"""An end for what cannot be polled: starting MPI, making a communicator, ending. No MPI is imported here.

What is to be ended must give the lock of the interpreter away (comm/lifetime.py says why that needs a word).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ringmpi.comm.last_words import last_words
from ringmpi.errors import FAILED

TIMEOUT_SECONDS = 600.0  # unless the user says otherwise; here, where `--help` reads it without loading arrays


@contextmanager
def deadline(seconds: float, what: str) -> Iterator[None]:
    """End this process, and with it the job, if the block takes longer; 0: no limit.

    A launcher ends all ranks when one is gone. MPI itself waits for ever for a rank that never comes.
    """
    timer = threading.Timer(seconds, _end, (seconds, what))
    timer.daemon = True
    if seconds:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(seconds: float, what: str) -> None:
    last_words(f"ringmpi: error: {too_late(seconds, what)}\n")
    os._exit(FAILED)


def too_late(seconds: float, what: str) -> str:
    """What to say when it is unknown which rank did not arrive."""
    return (
        f"{what} took more than {seconds:g} s: a rank did not arrive. Look for a stopped process or a node that cannot "
        f"be reached; a longer timeout waits longer (--timeout, Ring(timeout=...))."
    )
