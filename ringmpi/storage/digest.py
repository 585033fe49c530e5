"""The digest of a dataset, as layout.py defines it."""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from ringmpi.storage.recorded import RecordedArray
from ringmpi.storage.slabs import SLAB_BYTES
from ringmpi.storage.source import ArraySource

DIGEST_BYTES = 32


def new_digest() -> hashlib.blake2b:
    """The digest of no bytes; `update` it with the slabs of a dataset, little-endian, in C order."""
    return hashlib.blake2b(digest_size=DIGEST_BYTES)


class DigestBeside:
    """The digest of slabs, taken in by a thread while the caller reads or writes the next one.

    A slab must stay as it is until the next call. At most one is being taken in, so two are held at a time.
    """

    def __init__(self) -> None:
        self._digest = new_digest()
        self._thread = ThreadPoolExecutor(1)  # hashlib gives the lock of the interpreter away
        self._taken_in: Future[None] | None = None

    def __enter__(self) -> Self:
        """The thread ends with the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the slab that is being taken in."""
        self._thread.shutdown()

    def update(self, slab: NDArray[Any]) -> None:
        """Take in the next slab, C-contiguous and little-endian, once the one before is taken in."""
        self._wait()
        self._taken_in = self._thread.submit(self._digest.update, slab.data)

    def hexdigest(self) -> str:
        """Of all slabs."""
        self._wait()
        return self._digest.hexdigest()

    def _wait(self) -> None:
        if self._taken_in is not None:
            self._taken_in.result()


def dataset_digest(source: ArraySource | RecordedArray, *, slab_bytes: int = SLAB_BYTES) -> str:
    """The digest of what a dataset holds now: `source.recorded_digest`, unless a bit of it changed.

    Parameters
    ----------
    source : ArraySource or RecordedArray
        One of `Results.arrays`, or an array of the input.
    slab_bytes : int
        Bound on the memory of slabs, bytes: two of half of it are held at a time.

    Returns
    -------
    str
        64 hexadecimal digits.

    Raises
    ------
    StorageError
        If the file cannot be read.
    """
    with DigestBeside() as digest:
        for bits in source.slabs_in_order(slab_bytes // 2):
            digest.update(bits)
        return digest.hexdigest()
