"""Cutting a big dataset into slabs of bounded size. A dataset is [batch, heads, length, dim] here; dim is never cut."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd, lcm
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

SLAB_BYTES = 64 << 20

RowMap: TypeAlias = tuple[range, range]  # rows of a source, and the rows where they go; as many, and not none


@dataclass(frozen=True)
class Slab:
    """A box of a dataset: these batch entries, heads and rows (positions along the length), all of dim."""

    batch: slice
    heads: slice
    rows: slice

    def box(self, dim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Start and count of the slab on the axes batch, heads, length, dim."""
        parts = (self.batch, self.heads, self.rows, slice(0, dim))
        return tuple(part.start for part in parts), tuple(part.stop - part.start for part in parts)


@dataclass(frozen=True)
class Axes:
    """Which of the axes [batch, heads, length, dim] a dataset stores."""

    has_batch: bool
    has_dim: bool

    def full(self, stored: tuple[int, ...], missing: int = 1) -> tuple[int, ...]:
        """Four numbers from those of the stored axes, `missing` for the others."""
        return (missing,) * (not self.has_batch) + tuple(stored) + (missing,) * (not self.has_dim)

    def stored(self, full: tuple[int, ...]) -> tuple[int, ...]:
        """Those of four numbers that belong to stored axes."""
        return full[not self.has_batch : 4 if self.has_dim else 3]


def slab_extent(shape: tuple[int, ...], row_bytes: int, slab_bytes: int, unit: tuple[int, ...]) -> tuple[int, ...]:
    """Batch entries, heads and rows of one slab: rows grow first, then heads, then batch entries.

    Parameters
    ----------
    shape : tuple of 3 int
        batch, heads, length of the dataset.
    row_bytes : int
        Bytes of one row: dim x bytes an element.
    slab_bytes : int
        Bound. A single row is never cut.
    unit : tuple of 3 int
        HDF5 stores and inflates boxes of this many; slabs hold whole ones where the bound allows. (1, 1, 1): any.
    """
    extent = list(unit)
    for axis in (2, 1, 0):
        others = extent[0] * extent[1] * extent[2] // extent[axis]
        room = slab_bytes // (row_bytes * others)
        whole = room - room % unit[axis]
        extent[axis] = max(1, min(shape[axis], whole or room))
    return tuple(extent)


def slabs(shape: tuple[int, ...], extent: tuple[int, ...]) -> Iterator[Slab]:
    """All boxes of `extent`, in C order. With an extent for unit (1, 1, 1), so are the elements that they hold."""
    for parts in product(*(list(cuts(range(n), step)) for n, step in zip(shape[:3], extent, strict=True))):
        yield Slab(*parts)


def cuts(span: range, step: int) -> Iterator[slice]:
    """`span` (of step 1) cut at the multiples of `step`."""
    for start in range(span.start - span.start % step, span.stop, step):
        yield slice(max(start, span.start), min(start + step, span.stop))


def rows_within(ranges: Iterable[range], rows: slice) -> list[RowMap]:
    """What ascending `ranges` of positions have in `rows`: (positions, their indices in the list of all positions)."""
    return clipped(_indexed(ranges), rows)


def _indexed(ranges: Iterable[range]) -> Iterator[RowMap]:
    """Each of `ranges` with its indices in the list of all positions."""
    before = 0
    for positions in ranges:
        yield positions, range(before, before + len(positions))
        before += len(positions)


def clipped(maps: Iterable[RowMap], rows: slice) -> list[RowMap]:
    """Those parts of `maps` whose source lies in `rows`; sources ascend."""
    parts = []
    for source, target in maps:
        first, stop = (_index_at_or_after(source, edge) for edge in (rows.start, rows.stop))
        if first < stop:
            parts.append((source[first:stop], target[first:stop]))
    return parts


def shared_rows(held: Iterable[range], wanted: Iterable[range]) -> Iterator[RowMap]:
    """The positions in both: their indices in the list of all held, and in the list of all wanted positions.

    `wanted` ascend, so that ranges which do not overlap need not be compared.
    """
    targets = [(others, places) for others, places in _indexed(wanted) if others]
    last = [others[-1] for others, _ in targets]
    for positions, sources in _indexed(held):
        for nth in range(bisect_left(last, positions.start), len(targets)):
            others, places = targets[nth]
            if others.start >= positions.stop:
                break
            if both := _common(positions, others):
                yield sources[_indices(both, positions)], places[_indices(both, others)]


def _common(a: range, b: range) -> range:
    """The positions in both of two ascending ranges (the Chinese remainder theorem)."""
    apart, shared = b.start - a.start, gcd(a.step, b.step)
    start, stop, step = max(a.start, b.start), min(a.stop, b.stop), lcm(a.step, b.step)
    if start >= stop or apart % shared:
        return range(0)
    turns = apart // shared * pow(a.step // shared, -1, b.step // shared)
    meeting = a.start + turns * a.step
    return range(start + (meeting - start) % step, stop, step)


def _indices(part: range, whole: range) -> slice:
    """Where the positions of `part`, not none, lie in `whole`."""
    return slice(whole.index(part[0]), whole.index(part[-1]) + 1, part.step // whole.step)


def _index_at_or_after(positions: range, edge: int) -> int:
    """How many of `positions` lie before `edge`."""
    return min(max(0, -(-(edge - positions.start) // positions.step)), len(positions))


def joined(maps: Iterable[RowMap], gap: int) -> Iterator[list[RowMap]]:
    """Group `maps` such that one contiguous read serves each group; gaps of up to `gap` rows are read too."""
    group: list[RowMap] = []
    end = 0
    for rows, target in sorted(maps, key=lambda row_map: row_map[0].start):
        if group and rows.start > end + gap:
            yield group
            group, end = [], 0
        end = max(end, rows[-1] + 1)
        group.append((rows, target))
    if group:
        yield group


def as_slice(positions: range, origin: int = 0) -> slice:
    """A range that is not empty, as a slice of an array whose first row is `origin`."""
    return slice(positions.start - origin, positions[-1] + 1 - origin, positions.step)


def range_table(ranges: Iterable[range]) -> NDArray[np.int64]:
    """Ranges as they are stored: int64 [ranges, 3], start, stop and step."""
    return np.array([(r.start, r.stop, r.step) for r in ranges], np.int64).reshape(-1, 3)


def ranges_of(table: NDArray[np.int64]) -> tuple[range, ...]:
    """The ranges of a `range_table`."""
    return tuple(range(*bounds) for bounds in table.tolist())
