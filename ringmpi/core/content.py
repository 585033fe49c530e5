"""What an array holds, found in one pass: how many NaN, how many infinities, and a checksum of every bit in its place.

Contents add up: those of all shards make that of the whole array, however it was sharded. With 64-bit numbers,

    checksum = sum over rows of  mix(place of the row + mix(sum over its words of weight x word))

where `mix` is the finalizer of SplitMix64 (Steele, Lea and Flood 2014). An accident (a changed, swapped or missing row)
goes unnoticed once in 2^32 at the worst; against somebody who means harm it is no help.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.ranges import positions_of

Words: TypeAlias = NDArray[np.uint64]

BLOCK_BYTES = 1 << 20  # of an array that is looked at in one piece: fits a cache
MODULUS = 1 << 64


@dataclass(frozen=True)
class Content:
    """Content of an array or of some rows of it. `Content()` is that of no rows; `+` is that of both."""

    nan: int = 0
    inf: int = 0
    checksum: int = 0

    def __add__(self, other: Content) -> Content:
        """Of the rows of both."""
        return Content(self.nan + other.nan, self.inf + other.inf, (self.checksum + other.checksum) % MODULUS)

    @property
    def finite(self) -> bool:
        """Whether there is neither NaN nor inf."""
        return self.nan + self.inf == 0

    def __str__(self) -> str:
        """The checksum, as it is recorded."""
        return f"{self.checksum:016x}"


def content_of(array: NDArray[Any], ranges: Sequence[range], length: int) -> Content:
    """The content of those rows of a whole array that lie at the positions of `ranges`.

    Parameters
    ----------
    array : [batch, heads, n, dim]
        The rows; float16, bfloat16, float32 or float64, native.
    ranges : sequence of range
        Their positions, n in all.
    length : int
        Positions of the whole array.
    """
    batch, heads, n, dim = array.shape
    positions = positions_of(ranges)
    rows = max(1, BLOCK_BYTES // max(1, dim * array.itemsize))
    total = Content()
    for slab in range(batch * heads):
        numbers = array[slab // heads, slab % heads]
        for start in range(0, n, rows):
            places = (positions[start : start + rows] + slab * length).astype(np.uint64)
            total += _content_of_block(numbers[start : start + rows], places)
    return total


def _content_of_block(numbers: NDArray[Any], places: Words) -> Content:
    bits = np.ascontiguousarray(numbers).view(f"u{numbers.itemsize}")
    infinity = np.array(np.inf, numbers.dtype).view(bits.dtype)  # its exponent is all ones, as that of every NaN
    exponents_full = int(np.count_nonzero((bits & infinity) == infinity))
    infinite = int(np.count_nonzero(bits << 1 == infinity << 1)) if exponents_full else 0  # without the sign
    checksum = int(_mix(places + _mix(_row_sums(bits))).sum(dtype=np.uint64))
    return Content(exponents_full - infinite, infinite, checksum)


def _row_sums(bits: NDArray[np.unsignedinteger]) -> Words:
    """Weighted sums of the little-endian words of each row, of 32 bits, or of 16 where they do not fit.

    With weights of 64 random bits, two different rows agree with probability 2^-32 (multilinear hashing).
    """
    row_bytes = bits.shape[1] * bits.itemsize
    words = bits.astype(bits.dtype.newbyteorder("<"), copy=False).view("<u2" if row_bytes % 4 else "<u4")
    sums: Words = np.einsum("nw,w->n", words, _mix(np.arange(words.shape[1], dtype=np.uint64)))
    return sums


def _mix(words: Words) -> Words:
    """Every bit of a word depends on every bit that went in."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
