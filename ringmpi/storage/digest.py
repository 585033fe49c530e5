"""The digest of a dataset, as layout.py defines it."""

from __future__ import annotations

import hashlib

from ringmpi.storage.recorded import RecordedArray
from ringmpi.storage.slabs import SLAB_BYTES
from ringmpi.storage.source import ArraySource

DIGEST_BYTES = 32


def new_digest() -> hashlib.blake2b:
    """The digest of no bytes; `update` it with the slabs of a dataset, little-endian, in C order."""
    return hashlib.blake2b(digest_size=DIGEST_BYTES)


def dataset_digest(source: ArraySource | RecordedArray, *, slab_bytes: int = SLAB_BYTES) -> str:
    """The digest of what a dataset holds now: `source.recorded_digest`, unless a bit of it changed.

    Parameters
    ----------
    source : ArraySource or RecordedArray
        One of `Results.arrays`, or an array of the input.
    slab_bytes : int
        Bound on the memory of one slab, bytes.

    Returns
    -------
    str
        64 hexadecimal digits.

    Raises
    ------
    StorageError
        If the file cannot be read.
    """
    digest = new_digest()
    for bits in source.slabs_in_order(slab_bytes):
        digest.update(bits.data)
    return digest.hexdigest()
