"""A mask as a table of slices: each row is a set of (query position i, key position j), cut out by six integers.

    q0 q1 k0 k1 low high  =  {(i, j): q0 <= i < q1,  k0 <= j < k1,  low <= j - i <= high}

Full attention, causal, windows, documents and bands are slices, and the meet of two slices is a slice. In a *tight*
slice no bound can be moved inwards without losing a pair. Then its left edge max(k0, i + low) and its right edge
min(k1, i + high + 1) each bend once between q0 and q1, and every row in between sees a key:

    rows       q0 ... k0 - low ... q1            rows        q0  ...  k1 - high ... q1
    left edge  k0 ... k0, then + 1 per row         right edge  + 1 per row up to k1 ... k1

Whole tables are combined in core/slice_algebra.py.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringmpi.errors import MaskError

Slices: TypeAlias = NDArray[np.int64]
Ints: TypeAlias = NDArray[np.int64]

Q0, Q1, K0, K1, LOW, HIGH = range(6)
COLUMNS = 6
UNBOUNDED = 1 << 60
PAIR_LIMIT = 1 << 62
NO_SLICES: Slices = np.empty((0, COLUMNS), np.int64)
_ROW = "q0, q1, k0, k1, low, high"


def table(rows: ArrayLike) -> Slices:
    """A table of slices from rows of six integers. The rows may overlap, be loose or empty.

    Parameters
    ----------
    rows : array or nested sequence [n, 6], any integer dtype
        q0, q1, k0, k1, low, high, in positions; `-UNBOUNDED` and `UNBOUNDED` where there is no bound.

    Returns
    -------
    int64 [n, 6]
        A new array.

    Raises
    ------
    MaskError
        If the rows are not six integers each, or a bound is beyond `UNBOUNDED`.
    """
    try:
        found = np.asarray(rows)
    except ValueError:
        raise MaskError("slices have rows of different lengths; each needs six integers: " + _ROW) from None
    if found.shape in ((0,), (0, COLUMNS)):
        return NO_SLICES.copy()
    if found.ndim != 2 or found.shape[1] != COLUMNS or found.dtype.kind not in "iu":
        raise MaskError(
            f"slices have shape {found.shape} and dtype {found.dtype}; expected an integer table [n, 6] "
            f"with the columns {_ROW}. Reshape it, or convert it with astype('int64')."
        )
    lowest, highest = int(found.min()), int(found.max())
    if lowest < -UNBOUNDED or highest > UNBOUNDED:
        raise MaskError(
            f"slices have bounds from {lowest} to {highest}; they must lie within -2^60 and 2^60. "
            f"Write -{UNBOUNDED} or {UNBOUNDED} (UNBOUNDED) where there is no bound."
        )
    return found.astype(np.int64)


def close(slices: Slices) -> Slices:
    """Each bound as tight as the other four imply, empty slices included: ask `occupied` which ones hold a pair.

    The bounds are differences of three unknowns, 0, i and j. Tightening is shortest paths on three nodes, so one
    look at the paths of two edges is exact, and an empty slice shows as a crossed pair of bounds.

    Parameters
    ----------
    slices : int64 [n, 6]
        Bounds within -UNBOUNDED and UNBOUNDED.

    Returns
    -------
    int64 [n, 6]

    Source
    ------
    Mine 2001, "A new numerical abstract domain based on difference-bound matrices" (closure by shortest paths).
    """
    q0, q1, k0, k1, low, high = slices.T
    closed = np.empty_like(slices)
    closed[:, Q0] = np.maximum(q0, k0 - high)
    closed[:, Q1] = np.minimum(q1, k1 - low)
    closed[:, K0] = np.maximum(k0, q0 + low)
    closed[:, K1] = np.minimum(k1, q1 + high)
    closed[:, LOW] = np.maximum(low, k0 - q1 + 1)
    closed[:, HIGH] = np.minimum(high, k1 - 1 - q0)
    return closed


def occupied(closed: Slices) -> NDArray[np.bool_]:
    """Which of the `closed` slices [n, 6] hold at least one pair -> bool [n]."""
    q0, q1, k0, k1, low, high = closed.T
    return np.asarray((q0 < q1) & (k0 < k1) & (low <= high))


def tighten(slices: Slices) -> Slices:
    """Each bound as tight as the others imply, empty slices dropped, order kept.

    Parameters
    ----------
    slices : int64 [n, 6]
        May overlap, and hold -UNBOUNDED and UNBOUNDED anywhere.

    Returns
    -------
    int64 [m, 6], m <= n
        The same pairs. New array.
    """
    closed = close(slices)
    return np.asarray(closed[occupied(closed)])


def order(slices: Slices) -> Slices:
    """The same slices [n, 6] by ascending q0, then k0, then low. New array."""
    return np.asarray(slices[np.lexsort((slices[:, LOW], slices[:, K0], slices[:, Q0]))])


def clip_queries(slices: Slices, start: int, stop: int) -> Slices:
    """The part of `slices` with query positions start <= i < stop.

    Parameters
    ----------
    slices : int64 [n, 6]
    start, stop : int
        Query positions, within -UNBOUNDED and UNBOUNDED.

    Returns
    -------
    int64 [m, 6], m <= n
        Tight; order kept. New array.
    """
    clipped = slices[(slices[:, Q0] < stop) & (slices[:, Q1] > start)]
    clipped[:, Q0] = np.maximum(clipped[:, Q0], start)
    clipped[:, Q1] = np.minimum(clipped[:, Q1], stop)
    return tighten(clipped)


def _triangle(n: Ints) -> Ints:
    """0 + 1 + ... + (n - 1), exact modulo 2^64: the even factor is halved before the product."""
    return (n // 2) * (n - 1 + n % 2)


def count_pairs(slices: Slices) -> Ints:
    """Pairs of each slice, exactly.

    Sums the right edge (a ramp, then k1) and takes off the left one (k0, then a ramp), both seen from k0. Products
    may wrap around on the way: the arithmetic is modulo 2^64, so only the result has to fit.

    Parameters
    ----------
    slices : int64 [n, 6]
        Tight.

    Returns
    -------
    int64 [n]

    Raises
    ------
    MaskError
        If rows x keys a row of a slice pass 2^62.
    """
    q0, q1, k0, k1, low, high = slices.T
    rows, keys = q1 - q0, np.minimum(k1 - k0, high - low + 1)
    most = np.multiply(rows, keys, dtype=np.float64).max(initial=0.0)
    if most > PAIR_LIMIT:
        raise MaskError(
            f"a slice has up to {most:.3g} pairs; the limit is 2^62 = {PAIR_LIMIT:.3g} per slice. "
            f"Bound its queries and keys by the lengths of the sequences."
        )
    right_ramp, left_ramp = k1 - high - q0, q1 - k0 + low
    right = right_ramp * (q0 + high + 1 - k0) + _triangle(right_ramp) + (rows - right_ramp) * (k1 - k0)
    return np.asarray(right - _triangle(left_ramp))


def total_pairs(slices: Slices) -> int:
    """Pairs of disjoint `slices` [n, 6] together, exactly, also beyond 2^63. MaskError as in `count_pairs`."""
    counts = count_pairs(tighten(slices))
    return (int((counts >> 32).sum()) << 32) + int((counts & 0xFFFFFFFF).sum())


def row_counts(slices: Slices, length: int) -> Ints:
    """Keys that each query row sees, in one pass over slices and one over rows.

    A slice's keys by row start with a jump, then change by one where an edge moves and the other does not, and end
    with a jump. So the changes of the changes are a few entries a slice, and two running sums give the counts.

    Parameters
    ----------
    slices : int64 [n, 6]
        Disjoint, with finite keys.
    length : int
        Rows 0 <= i < length are counted.

    Returns
    -------
    int64 [length]
    """
    q0, q1, k0, k1, low, high = clip_queries(slices, 0, length).T
    jumps, bends = np.zeros((2, length + 1), np.int64)
    np.add.at(jumps, q0, q0 + high + 1 - k0)
    np.add.at(jumps, q1, q1 - 1 + low - k1)
    np.add.at(bends[1:], q0, 1)
    np.add.at(bends, k1 - high, -1)
    np.add.at(bends[1:], k0 - low, -1)
    np.add.at(bends, q1, 1)
    return np.asarray(np.cumsum(jumps + np.cumsum(bends))[:length])
