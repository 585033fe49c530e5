"""One run an output, one run a directory of checkpoints: a lock that ends with the process that holds it."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ringmpi.errors import StorageError
from ringmpi.storage.files import NO_LOCKS, storage_errors

TAKEN = (errno.EAGAIN, errno.EACCES)


@contextmanager
def only_run(destination: str | Path) -> Iterator[None]:
    """Hold the output file for this run; shard and temporary files are named after it.

    Raises
    ------
    StorageError
        If another run holds it. Where the file system has no locks, two runs are not kept apart.
    """
    held, after = "Wait for it, or name another output.", "Run again, with --force."
    with holding(Path(f"{destination}.lock"), str(destination), held=held, after=after):
        yield


@contextmanager
def holding(path: Path, what: str, *, held: str, after: str) -> Iterator[None]:
    """Hold the lock file `path` until the end of the block, or of this process.

    Parameters
    ----------
    path : path
        Created where it is missing, removed at the end.
    what : str
        What nobody else may write meanwhile, for messages.
    held, after : str
        What to do where another run holds it, and where another has just ended.

    Raises
    ------
    StorageError
        If another process holds it. Where the file system has no locks, two are not kept apart.
    """
    with storage_errors("lock", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor, what, held)
            if not path.exists() or path.stat().st_ino != os.fstat(descriptor).st_ino:
                raise StorageError(f"{what} has just been written by another run. {after}")
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        except BaseException:
            os.close(descriptor)
            raise
    try:
        yield
    finally:
        with suppress(OSError):  # what is left of it hinders nobody
            path.unlink()
        os.close(descriptor)


def _lock(descriptor: int, what: str, held: str) -> None:
    """Lock an open file; StorageError with the name of the holder if it is locked."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in TAKEN:
            holder = os.read(descriptor, 200).decode(errors="replace") or "another process"
            raise StorageError(f"{what} is being written by another run ({holder}). {held}") from None
        if error.errno not in NO_LOCKS:
            raise
