"""Many ranges of integers at once: what they hold, one range after the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]


def expand(start: Ints | int, stop: Ints) -> tuple[Ints, Ints]:
    """The values start[i] <= value < stop[i] of all i, one range after the other.

    Parameters
    ----------
    start, stop : int64 [n]
        A range is empty where stop <= start. A number as `start`: that of all.

    Returns
    -------
    index : int64 [m]
        i of each value, ascending.
    value : int64 [m]
    """
    counts = np.maximum(stop - start, 0)
    index = np.arange(len(counts)).repeat(counts)
    return index, np.arange(len(index)) + (start + counts - counts.cumsum()).repeat(counts)


def positions_of(ranges: Iterable[range]) -> Ints:
    """The positions of `ranges`, one range after the other, int64 [n]."""
    parts = [np.arange(part.start, part.stop, part.step, dtype=np.int64) for part in ranges]
    return np.concatenate([np.empty(0, np.int64), *parts])
