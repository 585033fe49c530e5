"""How many pairs each rank has with each piece, for many ranks at once and without a table of work.

Seen from the rows of one slice, most runs of keys are either out of sight or seen in full. So the keys are sorted, two
binary searches find what is seen in full, and only the few runs at the edges are counted pair by pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.ranges import expand
from ringmpi.core.slice_cut import find_overlaps
from ringmpi.core.slices import HIGH, K0, K1, LOW, Q0, Q1, Slices
from ringmpi.core.work import COLUMNS, Ints, ceil_div, count_in_box, count_pairs

Ranges = tuple[range, ...]
Chosen: TypeAlias = Ints | NDArray[np.bool_] | slice
CELLS_AT_ONCE = 1 << 16  # of ranks x runs of keys: half a MB, which stays in cache
COUNTS_AT_ONCE = 1 << 14  # of cells that are counted pair by pair: twenty arrays of them at once


class _Runs(NamedTuple):
    """Ranges of positions, each with the rank or piece that holds it; `stop` is one past the last position."""

    start: Ints
    step: Ints
    length: Ints
    stop: Ints
    holder: Ints

    def take(self, chosen: Chosen) -> _Runs:
        """Some of them."""
        return _Runs(*(column[chosen] for column in self))


class PairCounter:
    """Counts the pairs of a mask between the queries of shards and the keys of pieces, for one head.

    Parameters
    ----------
    slices : int64 [n, 6]
        A resolved mask.
    pieces : sequence of tuples of range
        Global positions of keys.
    """

    def __init__(self, slices: Slices, pieces: Sequence[Ranges]) -> None:
        keys = _runs(pieces)
        self._slices, self._pieces = slices, len(pieces)
        self._keys = keys.take(np.argsort(keys.start, kind="stable"))
        self._by_piece = np.argsort(self._keys.holder, kind="stable")
        self._held, self._first = np.unique(self._keys.holder[self._by_piece], return_index=True)

    def counts(self, shards: Sequence[Ranges]) -> Ints:
        """Pairs of each shard (global positions of queries) with each piece, int64 [shards, pieces]."""
        counts, rows = np.zeros((len(shards), self._pieces), np.int64), _runs(shards)
        if not len(self._slices) or not len(self._held):
            return counts
        height = max(CELLS_AT_ONCE // len(self._by_piece), 1)
        for top in range(0, len(shards), height):
            some = counts[top : top + height]
            own = slice(*np.searchsorted(rows.holder, [top, top + len(some)]).tolist())
            cells = _cells(self._slices, rows.take(own), self._keys, top, len(some))
            if len(self._held) == len(self._by_piece) == self._pieces:
                np.take(cells, self._by_piece, axis=1, out=some, mode="clip")
            else:
                some[:, self._held] = np.add.reduceat(cells[:, self._by_piece], self._first, axis=1)
        return counts


def _runs(groups: Sequence[Ranges]) -> _Runs:
    """All ranges that hold a position, in the order of their holders."""
    found = [(r.start, r.step, len(r), r[-1] + 1, holder) for holder, group in enumerate(groups) for r in group if r]
    return _Runs(*np.array(found, np.int64).reshape(-1, len(_Runs._fields)).T)


class _Views(NamedTuple):
    """The rows of one run that lie in one slice, and the keys that they see.

    rank        whose rows, counted from the first rank at hand
    start, step of the run; local rows u0 <= u < u1 of it
    u0, u1
    slices      [views, 6] the slice of each
    seen        keys seen_from <= j < seen_to are seen by some row
    full        keys full_from <= j < full_to are seen by all rows
    """

    rank: Ints
    start: Ints
    step: Ints
    u0: Ints
    u1: Ints
    slices: Slices
    seen: tuple[Ints, Ints]
    full: tuple[Ints, Ints]


def _views(slices: Slices, rows: _Runs, top: int) -> _Views:
    which_slice, run = find_overlaps(slices[:, Q0], slices[:, Q1], rows.start, rows.stop)
    s, r = slices[which_slice], rows.take(run)
    u0 = np.maximum(ceil_div(s[:, Q0] - r.start, r.step), 0)
    u1 = np.minimum(ceil_div(s[:, Q1] - r.start, r.step), r.length)
    s, r, u0, u1 = s[u0 < u1], r.take(u0 < u1), u0[u0 < u1], u1[u0 < u1]
    first, last = r.start + r.step * u0, r.start + r.step * (u1 - 1)
    seen = np.maximum(s[:, K0], first + s[:, LOW]), np.minimum(s[:, K1], last + s[:, HIGH] + 1)
    full = np.maximum(s[:, K0], last + s[:, LOW]), np.minimum(s[:, K1], first + s[:, HIGH] + 1)
    return _Views(r.holder - top, r.start, r.step, u0, u1, s, seen, full)


def _cells(slices: Slices, rows: _Runs, keys: _Runs, top: int, height: int) -> Ints:
    """Pairs of ranks top <= rank < top + height with each run of keys."""
    views = _views(slices, rows, top)
    if (keys.start[1:] >= keys.stop[:-1]).all():
        return _cells_of_runs_apart(views, keys, height)
    cells = np.zeros((height, len(keys.start)), np.int64)
    at_once = max(COUNTS_AT_ONCE // len(keys.start), 1)
    for begin in range(0, len(views.rank), at_once):
        some = np.arange(begin, min(begin + at_once, len(views.rank)))
        for rank, found in zip(views.rank[some].tolist(), _count(views, keys, some[:, None], slice(None)), strict=True):
            cells[rank] += found
    return cells


def _cells_of_runs_apart(views: _Views, keys: _Runs, height: int) -> Ints:
    """The cells where runs of keys do not lie among each other: most are empty or full."""
    span = np.searchsorted(keys.stop, views.seen[0], "right"), np.searchsorted(keys.start, views.seen[1])
    full = np.searchsorted(keys.start, views.full[0]), np.searchsorted(keys.stop, views.full[1], "right")
    in_full = full[0] < full[1]
    changes = np.zeros((height, len(keys.start) + 1), np.int64)
    for edge, sign in zip(full, (1, -1), strict=True):
        np.add.at(changes, (views.rank[in_full], edge[in_full]), sign * (views.u1 - views.u0)[in_full])
    cells = np.cumsum(changes[:, :-1], axis=1)
    cells *= keys.length
    starts = np.concatenate([span[0], np.where(in_full, full[1], span[1])])
    stops = np.concatenate([np.where(in_full, full[0], span[1]), span[1]])
    side, key = expand(starts, stops)
    view = side % len(in_full)
    np.add.at(cells, (views.rank[view], key), _count(views, keys, view, key))
    return cells


def _count(views: _Views, keys: _Runs, view: Ints, key: Ints | slice) -> Ints:
    """Pairs of some views with some runs of keys, indices broadcast against each other."""
    u0, u1, start, step = views.u0[view], views.u1[view], views.start[view], views.step[view]
    k, s = keys.take(key), [views.slices[:, column][view] for column in (K0, K1, LOW, HIGH)]
    one_step = bool((step == keys.step[0]).all() and (keys.step == keys.step[0]).all())
    v_step = int(keys.step[0]) if one_step else k.step
    v0 = np.maximum(ceil_div(s[0] - k.start, v_step), 0)
    v1 = np.maximum(np.minimum(ceil_div(s[1] - k.start, v_step), k.length), v0)
    if one_step:
        shift: Ints = k.start - start
        high: Ints = (s[3] - shift) // v_step
        return count_in_box(u0, u1, v0, v1, ceil_div(s[2] - shift, v_step), high)
    columns = np.broadcast_arrays(u0, u1, v0, v1, start, step, k.start, k.step, s[2], s[3])
    return count_pairs(np.stack(columns, -1).reshape(-1, COLUMNS)).reshape(columns[0].shape)
