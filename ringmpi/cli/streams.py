"""stdin, stdout and stderr of a command: closed ones, full ones, and pipes that nobody reads to their end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ringmpi.errors import StorageError


def open_streams() -> None:
    """Where a stream is closed, as daemons and cron start programs, let it lead nowhere.

    Else the next file that is opened would get its number, and what a library writes to stderr would go into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest number that is free: this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until Python ends


@contextmanager
def shown(made: str | Path = "") -> Iterator[None]:
    """Within the block, results are written to stdout, and nothing else is done.

    Parameters
    ----------
    made : path, optional
        A file or folder that the command has written before.

    Raises
    ------
    StorageError
        If stdout does not take them: a full disk, a pipe whose reader has ended.
    """
    try:
        yield
    except OSError as error:
        there = f"{made} is in place. " if made else ""
        raise StorageError(
            f"cannot write the results to stdout: {error.strerror or error}. {there}Send them to a file with room, or "
            f"to a program that reads to the end."
        ) from error


def drop_what_is_left() -> None:
    """Flush; what cannot be written is dropped. Python would try again as it ends, and end with a code of its own."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
