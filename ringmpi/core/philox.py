"""Philox-4x32-10: four random words by their place, not by their turn. Any place may be asked first, on any machine."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Words: TypeAlias = NDArray[np.uint64]

ROUNDS = 10
MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL = 0x9E3779B9, 0xBB67AE85
WORD_BITS = np.uint64(32)
WORD_MASK = np.uint64(0xFFFFFFFF)


def philox_4x32(
    counter: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike], key: int
) -> tuple[Words, Words, Words, Words]:
    """The four words at each `counter` under `key`.

    Products of two words need 64 bits, so words are kept in uint64. The four counters broadcast, and are not expanded
    before: the first two rounds cost as little as the narrow counters do.

    Parameters
    ----------
    counter : four integer arrays
        Each 0 <= c < 2^32; shapes that broadcast.
    key : int
        0 <= key < 2^64; its low word is the first of the two that the paper names.

    Returns
    -------
    four uint64 arrays, of the broadcast shape
        Each word < 2^32, uniform.

    Source
    ------
    Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3; Random123, philox.h.
    """
    a, b, c, d = (np.asarray(word).astype(np.uint64) for word in counter)
    low, high = key & 0xFFFFFFFF, key >> 32
    for _ in range(ROUNDS):
        left, right = MULTIPLIERS[0] * a, MULTIPLIERS[1] * c
        a, c = (right >> WORD_BITS) ^ (b ^ np.uint64(low)), (left >> WORD_BITS) ^ (d ^ np.uint64(high))
        b, d = right & WORD_MASK, left & WORD_MASK
        low, high = (low + WEYL[0]) & 0xFFFFFFFF, (high + WEYL[1]) & 0xFFFFFFFF
    return a, b, c, d
