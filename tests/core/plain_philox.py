"""Philox-4x32-10 and the dropout made of it, one number at a time, as the paper and core/dropout.py word them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def plain_philox(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """Four words, in Python integers."""
    c, (low, high) = counter, key
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = (second // 2**32 ^ c[1] ^ low, second % 2**32, first // 2**32 ^ c[3] ^ high, first % 2**32)
        low, high = (low + 0x9E3779B9) % 2**32, (high + 0xBB67AE85) % 2**32
    return c


def plain_keep(dropout: float, seed: int, pair: tuple[int, int, int, int]) -> bool:
    """Whether (batch, head, query position, key position) is kept."""
    b, h, i, j = pair
    words = plain_philox((i, j // 4, h, b), (seed % 2**32, seed // 2**32))
    return words[j % 4] >= math.floor(dropout * 2**32)


def plain_kept(dropout: float, seed: int, shape: tuple[int, int, int, int]) -> NDArray[np.bool_]:
    """All pairs of [batch, heads, queries, keys]."""
    kept = [plain_keep(dropout, seed, (b, h, i, j)) for b, h, i, j in np.ndindex(shape)]
    return np.array(kept, bool).reshape(shape)
