"""One run an output: a lock beside the output file that ends with the process that holds it."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ringmpi.errors import StorageError
from ringmpi.storage.files import ENOTSUPP, storage_errors

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, ENOTSUPP)  # of file systems without locks


@contextmanager
def only_run(destination: str | Path) -> Iterator[None]:
    """Hold the output file for this run; shard and temporary files are named after it.

    Raises
    ------
    StorageError
        If another run holds it. Where the file system has no locks, two runs are not kept apart.
    """
    path = Path(f"{destination}.lock")
    with storage_errors("lock", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _take(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path) -> None:
    """Lock the file, and make sure that it is still the one at `path`."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in NO_LOCKS:
            return
        holder = os.read(descriptor, 200).decode(errors="replace") or "another process"
        raise StorageError(
            f"{path.with_suffix('')} is being written by another run ({holder}). Wait for it, or name another output."
        ) from None
    if not path.exists() or path.stat().st_ino != os.fstat(descriptor).st_ino:
        raise StorageError(f"{path.with_suffix('')} has just been written by another run. Run again, with --force.")
