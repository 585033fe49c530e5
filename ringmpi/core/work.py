"""Mask and shards meet: which local rows of a query shard see which local keys of a visiting piece.

A work item is a slice of the mask (core/slices.py) in local indices. Ten integers:

    row_start row_stop key_start key_stop | row_origin row_stride key_origin key_stride | low high

Local row u (row_start <= u < row_stop) lies at position row_origin + row_stride * u, local key v likewise; the item
holds the pairs (u, v) with low <= position(v) - position(u) <= high. So every layout is served by one form, and a
kernel needs no other knowledge of masks or shardings. All arithmetic is exact (int64).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.ranges import expand

Work: TypeAlias = NDArray[np.int64]
Ints: TypeAlias = NDArray[np.int64]

ROW_START, ROW_STOP, KEY_START, KEY_STOP = range(4)
ROW_ORIGIN, ROW_STRIDE, KEY_ORIGIN, KEY_STRIDE, LOW, HIGH = range(4, 10)
COLUMNS = 10
NO_WORK: Work = np.empty((0, COLUMNS), np.int64)
SLOW_COUNT_ROWS = 1 << 22
ROWS_TOGETHER = 512


def ceil_div(a: Ints, b: Ints | int) -> Ints:
    """Smallest integer >= a / b, for b > 0."""
    return -(-a // b)


def meet(slices: Ints, rows: range, keys: range, row_offset: int = 0, key_offset: int = 0) -> Work:
    """The pairs of disjoint `slices` whose query position is in `rows` and key position in `keys`.

    Parameters
    ----------
    slices : int64 [n, 6]
        A resolved mask, or some of it.
    rows, keys : range
        Global positions, ascending, of one range of the query shard and one of the visiting piece.
    row_offset, key_offset : int
        Local index of the first of `rows` and `keys` in their arrays.

    Returns
    -------
    Work [m, 10]
        Tight: every item has rows and keys that meet. Same order as `slices`.
    """
    if not len(rows) or not len(keys) or not len(slices):
        return NO_WORK
    q0, q1, k0, k1, low, high = slices.T
    same = np.ones_like(q0)
    columns = (
        np.maximum(ceil_div(q0 - rows.start, rows.step), 0) + row_offset,
        np.minimum(ceil_div(q1 - rows.start, rows.step), len(rows)) + row_offset,
        np.maximum(ceil_div(k0 - keys.start, keys.step), 0) + key_offset,
        np.minimum(ceil_div(k1 - keys.start, keys.step), len(keys)) + key_offset,
        same * (rows.start - rows.step * row_offset),
        same * rows.step,
        same * (keys.start - keys.step * key_offset),
        same * keys.step,
        low,
        high,
    )
    return tighten(np.stack(columns, 1))


def tighten(work: Work) -> Work:
    """Items without the rows and keys at their edges that meet nothing; items where nothing meets are dropped."""
    u0, u1, v0, v1, row_origin, row_stride, key_origin, key_stride, low, high = work.T
    first_key, last_key = key_origin + key_stride * v0, key_origin + key_stride * (v1 - 1)
    u0 = np.maximum(u0, ceil_div(first_key - high - row_origin, row_stride))
    u1 = np.minimum(u1, (last_key - low - row_origin) // row_stride + 1)
    first_row, last_row = row_origin + row_stride * u0, row_origin + row_stride * (u1 - 1)
    v0 = np.maximum(v0, ceil_div(first_row + low - key_origin, key_stride))
    v1 = np.minimum(v1, (last_row + high - key_origin) // key_stride + 1)
    tight = work.copy()
    tight[:, :ROW_ORIGIN] = np.stack([u0, u1, v0, v1], 1)
    met: Work = tight[(u0 < u1) & (v0 < v1)]
    return met


def key_bounds(work: Work, rows: Ints) -> tuple[Ints, Ints]:
    """First and one-past-last local key that each local row sees: item `work[i]` for row `rows[i]` (or broadcast).

    An empty range has stop <= start.
    """
    origin = work[..., ROW_ORIGIN] + work[..., ROW_STRIDE] * rows - work[..., KEY_ORIGIN]
    stride = work[..., KEY_STRIDE]
    start = np.maximum(work[..., KEY_START], ceil_div(origin + work[..., LOW], stride))
    stop = np.minimum(work[..., KEY_STOP], (origin + work[..., HIGH]) // stride + 1)
    return start, stop


def expand_rows(work: Work) -> tuple[Ints, Ints]:
    """All rows of all items, one after the other -> (item of each, local row of each)."""
    return expand(work[:, ROW_START], work[:, ROW_STOP])


def count_pairs(work: Work) -> Ints:
    """Pairs of each item, exactly. In closed form where row and key strides agree, else row by row."""
    counts = np.zeros(len(work), np.int64)
    equal = work[:, ROW_STRIDE] == work[:, KEY_STRIDE]
    counts[equal] = _count_equal_strides(work[equal])
    for part in _split_by_rows(np.flatnonzero(~equal), work):
        items, rows = expand_rows(work[part])
        start, stop = key_bounds(work[part][items], rows)
        np.add.at(counts, part[items], np.maximum(stop - start, 0))
    return counts


def _split_by_rows(chosen: Ints, work: Work) -> list[Ints]:
    """Cut a list of items so that no part has many more than SLOW_COUNT_ROWS rows (memory stays bounded)."""
    total = np.cumsum(work[chosen, ROW_STOP] - work[chosen, ROW_START])
    return np.split(chosen, np.flatnonzero(np.diff(total // SLOW_COUNT_ROWS)) + 1) if len(chosen) else []


def _count_equal_strides(work: Work) -> Ints:
    u0, u1, v0, v1 = work[:, :ROW_ORIGIN].T
    stride = work[:, ROW_STRIDE]
    shift = work[:, KEY_ORIGIN] - work[:, ROW_ORIGIN]
    return count_in_box(u0, u1, v0, v1, ceil_div(work[:, LOW] - shift, stride), (work[:, HIGH] - shift) // stride)


def count_in_box(u0: Ints, u1: Ints, v0: Ints, v1: Ints, low: Ints, high: Ints) -> Ints:
    """Pairs with u0 <= u < u1, v0 <= v < v1, low <= v - u <= high, exactly; u0 <= u1 and v0 <= v1 are needed."""

    def up_to(diagonal: Ints) -> Ints:
        """Pairs with v - u <= diagonal: rows that see all keys, and the ramp before them."""
        full = np.maximum(u1 - np.maximum(u0, v1 - 1 - diagonal), 0)
        start = np.maximum(u0, v0 - diagonal)
        ramp = np.maximum(np.minimum(u1, v1 - 1 - diagonal) - start, 0)
        pairs: Ints = full * (v1 - v0) + ramp * (start + diagonal - v0 + 1) + ramp * (ramp - 1) // 2
        return pairs

    bounded = (low > v0 - u1 + 1).any()
    return np.asarray(up_to(high) - up_to(low - 1) if bounded else up_to(high), np.int64)


def cut(work: Work, budget: int, *, only: int | None = None) -> list[Work]:
    """Cut `work` into calls of about `budget` rows x keys each. Pairs are kept, and so is the order of items.

    Large items are cut by rows down to ROWS_TOGETHER, then by keys too: flat calls would make poor matrix products.

    Parameters
    ----------
    only : ROW_START or KEY_START, optional
        Cut only rows, or only keys, and have all that one of them meets in one call: where the order of its sums, over
        items and over the query heads that share a key, must not depend on the budget.
    """
    if only is not None:
        return _cut_together(work, budget, only)
    rows, keys = work[:, ROW_STOP] - work[:, ROW_START], work[:, KEY_STOP] - work[:, KEY_START]
    height = np.maximum(budget // np.maximum(keys, 1), min(ROWS_TOGETHER, budget))
    by_rows = _cut_axis(work, ROW_START, height)
    width = budget // np.minimum(height, np.maximum(rows, 1))
    calls = tighten(_cut_axis(by_rows, KEY_START, np.repeat(width, ceil_div(rows, height))))
    area = np.cumsum((calls[:, ROW_STOP] - calls[:, ROW_START]) * (calls[:, KEY_STOP] - calls[:, KEY_START]))
    return np.split(calls, np.flatnonzero(np.diff(area // budget)) + 1) if len(calls) else []


def within_rows(work: Work, start: int, stop: int) -> Work:
    """The pairs of local rows start <= u < stop, tight."""
    part = work.copy()
    part[:, ROW_START] = np.maximum(part[:, ROW_START], start)
    part[:, ROW_STOP] = np.minimum(part[:, ROW_STOP], stop)
    return tighten(part[part[:, ROW_START] < part[:, ROW_STOP]])


def counted_from(work: Work, row: int, key: int) -> Work:
    """The same pairs for arrays that begin at local `row` and `key` of those that `work` was made for."""
    moved = work.copy()
    for first, axis, origin, stride in (
        (row, ROW_START, ROW_ORIGIN, ROW_STRIDE),
        (key, KEY_START, KEY_ORIGIN, KEY_STRIDE),
    ):
        moved[:, axis : axis + 2] -= first
        moved[:, origin] += first * moved[:, stride]
    return moved


def _cut_together(work: Work, budget: int, axis: int) -> list[Work]:
    """Cut all items at the same bounds along rows or keys (`axis`): a call has what lies between two of them."""
    if not len(work):
        return []
    start, stop, bounds = work[:, axis], work[:, axis + 1], _bounds(work, budget, axis)
    first = np.searchsorted(bounds, start, "right") - 1
    item, call = expand(first, np.searchsorted(bounds, stop, "left"))
    parts = work[item]
    parts[:, axis] = np.maximum(parts[:, axis], bounds[call])
    parts[:, axis + 1] = np.minimum(parts[:, axis + 1], np.append(bounds[1:], stop.max())[call])
    by_call = np.argsort(call, kind="stable")
    split = np.split(parts[by_call], np.flatnonzero(np.diff(call[by_call])) + 1)
    return [tight for tight in map(tighten, split) if len(tight)]


def _bounds(work: Work, budget: int, axis: int) -> Ints:
    """Where to cut rows or keys (`axis`) so that what meets between two bounds is about `budget`: where calls begin."""
    other = KEY_START if axis == ROW_START else ROW_START
    edges = np.unique(work[:, axis : axis + 2])
    change = np.zeros(len(edges), np.int64)
    for edge, sign in ((axis, 1), (axis + 1, -1)):
        np.add.at(change, np.searchsorted(edges, work[:, edge]), sign * (work[:, other + 1] - work[:, other]))
    met = np.cumsum(change)[:-1]  # by one row, or key, between two edges
    height = np.maximum(budget // np.maximum(met, 1), 1)
    parts = ceil_div(np.diff(edges), height)
    segment, nth = expand(0, parts)
    begins = edges[segment] + nth * height[segment]
    area = met[segment] * np.diff(begins, append=edges[-1])
    full = (np.cumsum(area) - area) // budget
    return np.asarray(begins[np.diff(full, prepend=-1) > 0])


def _cut_axis(work: Work, start: int, longest: Ints) -> Work:
    """Cut items along rows or keys (columns `start`, `start` + 1) into lengths of at most `longest`."""
    item, nth = expand(0, ceil_div(work[:, start + 1] - work[:, start], longest))
    parts: Work = work[item]
    parts[:, start] += nth * longest[item]
    parts[:, start + 1] = np.minimum(parts[:, start + 1], parts[:, start] + longest[item])
    return parts
