"""What ranks have attended to, as slices in positions of the whole sequence, and what is left of a mask then.

What is left of a mask is a mask: so a pass that stopped goes on with any ranks, shardings and schedule. What a rank
has attended to is said in two ways: of a finished visit the rectangle, its rows times the keys of the piece (beyond
the mask it says nothing, so it may be larger than what was met); of the visit under way the rectangle of the rows that
are over, and of the others the pairs of the calls done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ringmpi.core.slice_algebra import intersect, unite
from ringmpi.core.slice_cut import Budget, join, minus
from ringmpi.core.slices import COLUMNS, K0, K1, NO_SLICES, Q0, Q1, UNBOUNDED, Ints, Slices, tighten, total_pairs
from ringmpi.core.work import (
    KEY_ORIGIN,
    KEY_START,
    KEY_STOP,
    KEY_STRIDE,
    LOW,
    ROW_ORIGIN,
    ROW_START,
    ROW_STOP,
    ROW_STRIDE,
    Work,
)

MOST_SLICES = 4096  # that one rank may say: more would make the table of thousands of ranks too large to subtract


def rectangles(rows: Iterable[range], keys: Iterable[range]) -> Slices | None:
    """All pairs of some query positions and some key positions.

    Returns
    -------
    int64 [n, 6] or None
        Disjoint. None where slices cannot say it: positions with gaps (striped), or more than MOST_SLICES.
    """
    across, along = _joined(rows), _joined(keys)
    if across is None or along is None or len(across) * len(along) > MOST_SLICES:
        return None
    boxes = [(*row, *key, -UNBOUNDED, UNBOUNDED) for row in across for key in along]
    return np.array(boxes, np.int64).reshape(-1, COLUMNS)


def part_of_visit(done: Work, left: Work, rows: Sequence[range], keys: Sequence[range]) -> Slices | None:
    """What has been attended to in a visit under way.

    Parameters
    ----------
    done, left : Work [n, 10], [m, 10]
        Its items, of calls that were made and that were not.
    rows, keys : sequence of range
        Positions of all rows and keys of the visit, in local order.

    Returns
    -------
    int64 [l, 6] or None
        May overlap. None as in `rectangles`.
    """
    start, stop = _joined_intervals(left[:, ROW_START], left[:, ROW_STOP])
    count = sum(map(len, rows))
    over = zip([0, *stop.tolist()], [*start.tolist(), count], strict=True)
    first = np.searchsorted(stop, done[:, ROW_START], "right")
    under_way = np.append(start, count)[first] < done[:, ROW_STOP]
    whole = rectangles([part for a, b in over for part in _rows_between(rows, a, b)], keys)
    rest = slices_of_work(done[under_way])
    return None if whole is None or rest is None else np.concatenate([whole, rest])


def _joined_intervals(start: Ints, stop: Ints) -> tuple[Ints, Ints]:
    """Intervals that may overlap as ascending ones that do not, nor touch."""
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(stop[order])
    opens = np.append(True, start[1:] > reach[:-1])[: len(start)]
    return start[opens], reach[np.append(opens[1:], True)[: len(start)]]


def _rows_between(ranges: Sequence[range], first: int, stop: int) -> Iterator[range]:
    """The positions of local rows first <= row < stop."""
    done = 0
    for positions in ranges:
        yield positions[max(first - done, 0) : max(stop - done, 0)]
        done += len(positions)


def slices_of_work(work: Work) -> Slices | None:
    """The pairs of work items [n, 10], as slices; None where positions have gaps, or there are too many.

    The items are disjoint, and so are the slices.
    """
    apart = (work[:, ROW_STRIDE] > 1) & (work[:, ROW_STOP] - work[:, ROW_START] > 1)
    apart |= (work[:, KEY_STRIDE] > 1) & (work[:, KEY_STOP] - work[:, KEY_START] > 1)
    if apart.any() or len(work) > MOST_SLICES:
        return None
    first_row = work[:, ROW_ORIGIN] + work[:, ROW_STRIDE] * work[:, ROW_START]
    first_key = work[:, KEY_ORIGIN] + work[:, KEY_STRIDE] * work[:, KEY_START]
    last_row = first_row + work[:, ROW_STOP] - work[:, ROW_START]
    last_key = first_key + work[:, KEY_STOP] - work[:, KEY_START]
    return np.stack([first_row, last_row, first_key, last_key, *work[:, LOW:].T], 1)


def _joined(ranges: Iterable[range]) -> list[tuple[int, int]] | None:
    """Ranges of positions as few runs (start, stop), ascending; None where one has gaps."""
    runs: list[tuple[int, int]] = []
    for positions in sorted((r for r in ranges if r), key=lambda r: r.start):
        if positions.step > 1 and len(positions) > 1:
            return None
        start, stop = positions.start, positions[-1] + 1
        if runs and runs[-1][1] == start:
            runs[-1] = runs[-1][0], stop
        else:
            runs.append((start, stop))
    return runs


def rest_of(mask: Slices, absorbed: Slices) -> Slices:
    """What is left of a mask, in the order of the slices that it is left of.

    So a row meets the keys of a block in the order in which it would have met them. And the mask is cut only where what
    is left of all pairs is: rectangles of whole blocks leave of a slice within a block all or nothing, so that the sums
    there are made as they would have been.

    Parameters
    ----------
    mask : int64 [n, 6]
        Disjoint, tight.
    absorbed : int64 [m, 6]
        May overlap, and hold pairs that are not in the mask.

    Returns
    -------
    int64 [l, 6]
        Disjoint, tight.

    Raises
    ------
    MaskError
        If the parts are too many to resolve (core/slice_cut.py).
    """
    if not len(mask) or np.array_equal(mask, absorbed):  # a pass that is over
        return NO_SLICES
    first, last = mask.min(axis=0), mask.max(axis=0)
    everything = np.array([[first[Q0], last[Q1], first[K0], last[K1], -UNBOUNDED, UNBOUNDED]])
    left = minus(tighten(everything), unite([absorbed]), Budget())
    _, parent, fragments = join(left, mask, Budget())
    return np.asarray(fragments[np.lexsort((fragments[:, K0], fragments[:, Q0], parent))])


def pairs_within(absorbed: Slices, mask: Slices) -> int:
    """How many pairs of the disjoint slices of `mask` [n, 6] are in `absorbed` [m, 6], which may overlap."""
    return total_pairs(intersect(mask, unite([absorbed])))
