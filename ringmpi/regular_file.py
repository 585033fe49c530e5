"""Reading a file whole that somebody has named: a pipe would let it wait for ever, a device has no end."""

from __future__ import annotations

import errno
import os
from pathlib import Path

MOST_BYTES = 256 << 20
LEAST_ROOM_BYTES = 1 << 20  # files of /proc have no size
NO_REGULAR_FILE = "not a regular file"  # a message; it has no error number


def regular_bytes(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The bytes of a regular file; of a larger one than `most_bytes` one more than these, so that it can be refused.

    Raises
    ------
    OSError
        If it cannot be read, or is a folder, a pipe or a device.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        raise OSError(NO_REGULAR_FILE)
    with path.open("rb") as file:
        size = max(os.fstat(file.fileno()).st_size, LEAST_ROOM_BYTES)  # memory for all that is asked is taken at once
        return file.read(min(size, most_bytes) + 1)
