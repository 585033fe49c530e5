"""Work items to tiles: which rows and keys one matrix product takes. Integers only, no array of values is touched.

Large items are cut by a grid, the key tile outside and the row tile inside, so that what is made of K and V for a key
tile serves all its row tiles. Small items (documents of ten tokens) are lowered together: each row of each item is an
interval of keys, and neighbouring intervals make one tile, whatever items they are of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ringmpi.core.work import (
    KEY_START,
    KEY_STOP,
    KEY_STRIDE,
    ROW_ORIGIN,
    ROW_START,
    ROW_STOP,
    Ints,
    Work,
    expand_rows,
    key_bounds,
)

FRAME = slice(ROW_ORIGIN, KEY_STRIDE + 1)
SMALL_FRACTION = 4
WORTH_CUTTING = 0.75
ROWS_LOWERED_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Tile:
    """Rows and keys that meet in one matrix product.

    rows, keys   slice            local indices
    start, stop  int64 [rows]     first and one-past-last local key of each row, inside `keys`, start <= stop
                 or both None     every row sees every key
    frame        int64 [4]        row_origin, row_stride, key_origin, key_stride (core/work.py)
    """

    rows: slice
    keys: slice
    start: Ints | None
    stop: Ints | None
    frame: Ints

    def positions(self) -> tuple[Ints, Ints]:
        """Global positions of the rows and of the keys."""
        row_origin, row_stride, key_origin, key_stride = self.frame
        rows = row_origin + row_stride * np.arange(self.rows.start, self.rows.stop)
        return rows, key_origin + key_stride * np.arange(self.keys.start, self.keys.stop)


def key_tiles(work: Work, tile_rows: int, tile_keys: int) -> Iterator[tuple[slice, list[Tile]]]:
    """Cut `work` into tiles of at most `tile_rows` x `tile_keys`, key tile by key tile.

    Parameters
    ----------
    work : Work [n, 10]
    tile_rows, tile_keys : int
        At least 1.

    Yields
    ------
    keys : slice
        Local keys that hold the keys of all `tiles`; at most `tile_keys`.
    tiles : list of Tile
        Every pair of `work` is in exactly one tile of all; no tile is empty.
    """
    small_rows, small_keys = -(-tile_rows // SMALL_FRACTION), -(-tile_keys // SMALL_FRACTION)
    rows, keys = work[:, ROW_STOP] - work[:, ROW_START], work[:, KEY_STOP] - work[:, KEY_START]
    small = (rows < small_rows) & (keys <= small_keys)
    for item in work[~small]:
        yield from _grid(item, tile_rows, tile_keys)
    for alike in _alike(work[small]):
        for tile in _lowered(alike, small_rows, small_keys):
            yield tile.keys, [tile]


def _grid(item: Ints, tile_rows: int, tile_keys: int) -> Iterator[tuple[slice, list[Tile]]]:
    """One large item by a grid. Bounds rise with the row, so the first and last row say what a tile sees."""
    edges = _evenly(item[ROW_START], item[ROW_STOP], tile_rows)
    lowest_start, lowest_stop = key_bounds(item, edges[:-1])
    highest_start, highest_stop = key_bounds(item, edges[1:] - 1)
    for key, key_end in pairwise(_evenly(item[KEY_START], item[KEY_STOP], tile_keys).tolist()):
        start, stop = np.maximum(lowest_start, key), np.minimum(highest_stop, key_end)
        full = (highest_start <= start) & (lowest_stop >= stop)
        tiles = []
        for t in np.flatnonzero(start < stop):
            rows = slice(int(edges[t]), int(edges[t + 1]))
            if full[t]:
                tiles.append(Tile(rows, slice(int(start[t]), int(stop[t])), None, None, item[FRAME]))
            else:
                tiles += _crossed(item, rows, slice(key, key_end), -(-tile_rows // SMALL_FRACTION))
        if tiles:
            yield slice(key, key_end), tiles


def _evenly(start: int, stop: int, longest: int) -> Ints:
    """Edges of the fewest pieces, of nearly equal length, none longer than `longest`."""
    pieces = -(-(stop - start) // longest)
    return start + (stop - start) * np.arange(pieces + 1) // pieces


def _crossed(item: Ints, rows: slice, keys: slice, height: int) -> list[Tile]:
    """A part of an item that an edge of its band crosses: one tile, or lower ones where these leave out much more."""
    local = np.arange(rows.start, rows.stop)
    start, stop = key_bounds(item, local)
    start, stop = np.maximum(start, keys.start), np.minimum(stop, keys.stop)
    seen = start < stop
    if not seen.any():
        return []
    local, start, stop = local[seen], start[seen], stop[seen]
    whole = _of_intervals(local, start, stop, item[FRAME])
    parts = [slice(i, i + height) for i in range(0, len(local), height)]
    lower = [_of_intervals(local[part], start[part], stop[part], item[FRAME]) for part in parts]
    return lower if sum(map(_area, lower)) < WORTH_CUTTING * _area(whole) else [whole]


def _area(tile: Tile) -> int:
    return int((tile.rows.stop - tile.rows.start) * (tile.keys.stop - tile.keys.start))


def _alike(work: Work) -> list[Work]:
    """Runs of items in one frame, of a bounded number of rows (memory stays bounded)."""
    rows = np.cumsum(work[:, ROW_STOP] - work[:, ROW_START]) // ROWS_LOWERED_AT_ONCE
    changes = np.diff(rows).astype(bool) | np.diff(work[:, FRAME], axis=0).any(1)
    return np.split(work, np.flatnonzero(changes) + 1) if len(work) else []


def _lowered(work: Work, height: int, width: int) -> Iterator[Tile]:
    """Small items of one frame together: a tile is the nth intervals of `height` rows that start near each other."""
    items, rows = expand_rows(work)
    start, stop = key_bounds(work[items], rows)
    order = np.lexsort((start, rows))
    order = order[start[order] < stop[order]]
    rows, start, stop = rows[order], start[order], stop[order]
    nth = np.arange(len(rows)) - np.searchsorted(rows, rows)
    places = np.stack([nth, rows // height, start // width])
    order = np.lexsort((rows, *places[::-1]))
    changes = np.diff(places[:, order], axis=1).any(0)
    for members in np.split(order, np.flatnonzero(changes) + 1) if len(order) else []:
        yield _of_intervals(rows[members], start[members], stop[members], work[0, FRAME])


def _of_intervals(rows: Ints, start: Ints, stop: Ints, frame: Ints) -> Tile:
    """A tile of ascending rows, one interval each; rows between them that have none see no key."""
    first, keys = int(rows[0]), slice(int(start.min()), int(stop.max()))
    starts = np.full(int(rows[-1]) + 1 - first, keys.start)
    stops = starts.copy()
    starts[rows - first], stops[rows - first] = start, stop
    return Tile(slice(first, first + len(starts)), keys, starts, stops, frame)
