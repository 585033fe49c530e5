"""The digest of a file: BLAKE2b over those of its parts, so that several threads share the work.

    parts = [blake2b(part, digest_size=32).digest() for part in pieces of PART_BYTES bytes, the last one shorter]
    digest = blake2b(b"".join(parts), digest_size=32).hexdigest()

hashlib hashes 0.8 GB/s a thread, which is less than many a disk takes.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from ringmpi.process.cores import threads_alone
from ringmpi.storage.digest import new_digest
from ringmpi.storage.files import storage_errors

PART_BYTES = 16 << 20
READ_BYTES = 1 << 20  # at once, of each thread
MOST_THREADS = 4


class Fingerprint(NamedTuple):
    """Bytes of a file, and their digest as 64 hexadecimal digits."""

    bytes: int
    digest: str


def fingerprint(path: Path) -> Fingerprint:
    """Read a file, in bounded memory; StorageError if it cannot be read."""
    with storage_errors("read", path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            with ThreadPoolExecutor(min(MOST_THREADS, threads_alone())) as threads:
                digests = list(threads.map(lambda start: _part(descriptor, start), range(0, size, PART_BYTES)))
        finally:
            os.close(descriptor)
    whole = new_digest()
    whole.update(b"".join(digests))
    return Fingerprint(size, whole.hexdigest())


def _part(descriptor: int, start: int) -> bytes:
    """The digest of the part of a file that begins at `start`."""
    digest = new_digest()
    at, stop = start, start + PART_BYTES
    while at < stop and (found := os.pread(descriptor, min(READ_BYTES, stop - at), at)):
        digest.update(found)
        at += len(found)
    return digest.digest()
