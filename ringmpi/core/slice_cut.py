"""Which slices of two tables meet, and what is left of slices with holes: the two steps under core/slice_algebra.py.

join     Two ranges overlap where one starts inside the other: two binary searches find all pairs. A slice is a range
         on three axes (q, k and j - i); each looks along the axis with the fewest overlaps.
cut      Between the rows where a hole starts, bends or ends, a *strip*, disjoint holes stand side by side in one
         order, and what lies between neighbours is a slice.

Both say what they are about to look at before they take memory for it, and a `Budget` refuses when it is too much.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ringmpi.core.ranges import expand
from ringmpi.core.slices import (
    COLUMNS,
    HIGH,
    K0,
    K1,
    LOW,
    NO_SLICES,
    Q0,
    Q1,
    UNBOUNDED,
    Ints,
    Slices,
    close,
    occupied,
    tighten,
)
from ringmpi.errors import MaskError

OVERLAP_LIMIT = 1 << 22  # in one step, and slices in a table: keeps a step near 1 GB
TOTAL_LIMIT = 2 * OVERLAP_LIMIT  # over all steps of one call: seconds, not minutes


class Budget:
    """Adds up the slices and overlaps that one call looks at. Time and memory both follow their number."""

    def __init__(self) -> None:
        self.spent = 0

    def spend(self, overlaps: int) -> None:
        """Announce the overlaps of the next step, before memory for them is taken; MaskError if too many."""
        self.spent += overlaps
        if overlaps > OVERLAP_LIMIT or self.spent > TOTAL_LIMIT:
            _refuse(f"{overlaps:,} overlaps of slices in one step and {self.spent:,} in all")


def check_size(slices: int) -> None:
    """MaskError if a table would hold more than OVERLAP_LIMIT slices."""
    if slices > OVERLAP_LIMIT:
        _refuse(f"a table of {slices:,} slices")


def _refuse(found: str) -> None:
    raise MaskError(
        f"this mask takes {found} to resolve; the limits are {OVERLAP_LIMIT:,} overlaps in one step, {TOTAL_LIMIT:,} "
        f"in all and {OVERLAP_LIMIT:,} slices, because thin slices that cross leave quadratically many. Use fewer or "
        f"wider slices, for example with bounds rounded to multiples of a block."
    )


def _extents(slices: Slices) -> tuple[Ints, Ints]:
    """Where slices start and stop on the axes q, k and j - i -> two [3, n]."""
    return slices[:, [Q0, K0, LOW]].T, slices[:, [Q1, K1, HIGH]].T + np.array([[0], [0], [1]])


def _count_overlaps(a_start: Ints, a_stop: Ints, b_start: Ints, b_stop: Ints) -> Ints:
    """How many ranges of b overlap each of a: those that start before it stops, less those that stop before it."""
    return np.searchsorted(np.sort(b_start), a_stop) - np.searchsorted(np.sort(b_stop), a_start, "right")


def find_overlaps(a_start: Ints, a_stop: Ints, b_start: Ints, b_stop: Ints) -> tuple[Ints, Ints]:
    """All i, j with range a[i] overlapping b[j]: either b starts inside a, or a starts inside b and after it."""
    by_a, by_b = np.argsort(a_start), np.argsort(b_start)
    a_sorted, b_sorted = a_start[by_a], b_start[by_b]
    outer_a, inner_b = expand(np.searchsorted(b_sorted, a_start), np.searchsorted(b_sorted, a_stop))
    outer_b, inner_a = expand(np.searchsorted(a_sorted, b_start, "right"), np.searchsorted(a_sorted, b_stop))
    return np.concatenate([outer_a, by_a[inner_a]]), np.concatenate([by_b[inner_b], outer_b])


def join(a: Slices, b: Slices, budget: Budget) -> tuple[Ints, Ints, Slices]:
    """Which slices of two tables meet, and where.

    Parameters
    ----------
    a, b : int64 [n, 6] and [m, 6]
        Tight; each may overlap itself.
    budget : Budget
        MaskError is raised before it is overdrawn.

    Returns
    -------
    i, j : int64 [l]
        All with a[i] & b[j] not empty, each pair once, in no order.
    meets : int64 [l, 6]
        a[i] & b[j], tight.
    """
    if not len(a) or not len(b):
        return np.empty(0, np.int64), np.empty(0, np.int64), NO_SLICES
    axes = list(zip(*_extents(a), *_extents(b), strict=True))
    overlaps = np.stack([_count_overlaps(*axis) for axis in axes])
    budget.spend(len(a) + len(b) + int(overlaps.min(0).sum()))
    sparsest = overlaps.argmin(0)
    found = []
    for axis, (a_start, a_stop, b_start, b_stop) in enumerate(axes):
        mine = np.flatnonzero(sparsest == axis)
        i, j = find_overlaps(a_start[mine], a_stop[mine], b_start, b_stop)
        found.append((mine[i], j))
    i, j = np.concatenate(found, 1)
    meets = a[i]
    np.maximum(meets[:, Q0::2], b[j][:, Q0::2], out=meets[:, Q0::2])
    np.minimum(meets[:, Q1::2], b[j][:, Q1::2], out=meets[:, Q1::2])
    meets = close(meets)
    met = occupied(meets)
    return i[met], j[met], meets[met]


class _Strips(NamedTuple):
    """Rows start <= i < stop of slice `host`; hole x lies in the strips first[x] <= strip < last[x]."""

    start: Ints
    stop: Ints
    host: Ints
    first: Ints
    last: Ints


def _strips(slices: Slices, host: Ints, holes: Slices) -> _Strips:
    """Cut the rows of each slice wherever one of its holes starts, bends or ends.

    The rows of all slices are laid end to end on one axis (row + shift), one spare row apart, and cut in one go.
    """
    spans = slices[:, Q1] - slices[:, Q0] + 1
    shift = np.cumsum(spans) - spans - slices[:, Q0]
    q0, q1, k0, k1, low, high = holes.T
    holes_start, holes_stop = q0 + shift[host], q1 + shift[host]
    bends = (k0 - low + shift[host], k1 - high + shift[host])
    ends = (slices[:, Q0] + shift, slices[:, Q1] + shift)
    events = np.sort(np.concatenate([holes_start, holes_stop, *bends, *ends]))
    events = events[np.append(True, events[1:] != events[:-1])]
    event_host = np.searchsorted(ends[0], events, "right") - 1
    inside = event_host[1:] == event_host[:-1]
    strip_host = event_host[:-1][inside]
    strip = np.append(0, np.cumsum(inside))  # of the strip that starts with an event
    return _Strips(
        start=events[:-1][inside] - shift[strip_host],
        stop=events[1:][inside] - shift[strip_host],
        host=strip_host,
        first=strip[np.searchsorted(events, holes_start)],
        last=strip[np.searchsorted(events, holes_stop)],
    )


def _gaps(slices: Slices, holes: Slices, strips: _Strips) -> Slices:
    """What lies left of, between and right of the holes of each strip, by strip. Some are empty.

    Each side of a gap has one bound, by key or by diagonal, so that equal edges are equal numbers.
    """
    hole, strip = expand(strips.first, strips.last)
    left_edge = np.maximum(holes[hole, K0], strips.start[strip] + holes[hole, LOW])
    across = np.lexsort((left_edge, strip))
    hole, strip = hole[across], strip[across]
    gap_strip = np.repeat(np.arange(len(strips.start)), np.bincount(strip, minlength=len(strips.start)) + 1)
    gaps = np.tile(np.array([-UNBOUNDED, UNBOUNDED], np.int64), (len(gap_strip), COLUMNS // 2))
    gaps[:, Q0], gaps[:, Q1] = strips.start[gap_strip], strips.stop[gap_strip]
    leftmost = np.append(True, gap_strip[1:] != gap_strip[:-1])
    rightmost = np.append(leftmost[1:], True)
    gaps[leftmost, K0::2] = slices[strips.host, K0::2]
    gaps[rightmost, K1::2] = slices[strips.host, K1::2]
    before = np.arange(len(hole)) + strip
    _, _, k0, k1, low, high = holes[hole].T
    slants_left = strips.stop[strip] - 1 + low > k0
    slants_right = strips.start[strip] + high < k1 - 1
    gaps[before, K1] = np.where(slants_left, UNBOUNDED, k0)
    gaps[before, HIGH] = np.where(slants_left, low - 1, UNBOUNDED)
    gaps[before + 1, K0] = np.where(slants_right, -UNBOUNDED, k1)
    gaps[before + 1, LOW] = np.where(slants_right, high + 1, -UNBOUNDED)
    return gaps


def _fuse(gaps: Slices) -> Slices:
    """Gaps with equal edges in adjoining rows become one slice. `gaps` come by ascending strip."""
    key = np.zeros(len(gaps), np.int64)
    for column in (K0, K1, LOW, HIGH):  # a hash, only to bring equal edges together with one stable sort
        key = (key + gaps[:, column]) * 0x5851F42D4C957F2D
    gaps = gaps[np.argsort(key, kind="stable")]
    starts = np.ones(len(gaps), bool)
    starts[1:] = (gaps[1:, K0:] != gaps[:-1, K0:]).any(1) | (gaps[1:, Q0] != gaps[:-1, Q1])
    fused = gaps[starts]
    fused[:, Q1] = gaps[np.append(starts[1:], True)[: len(gaps)], Q1]
    return fused


def cut(slices: Slices, host: Ints, holes: Slices, budget: Budget) -> Slices:
    """What is left of slices with holes.

    Parameters
    ----------
    slices : int64 [n, 6]
        Tight; may overlap.
    host : int64 [m]
    holes : int64 [m, 6]
        Tight. holes[x] lies inside slices[host[x]] and is cut from that slice only; holes of one host are disjoint.
    budget : Budget
        MaskError is raised before it is overdrawn.

    Returns
    -------
    int64 [l, 6]
        Tight, in no order; what is left of one slice is disjoint.
    """
    holed = np.zeros(len(slices), bool)
    holed[host] = True
    whole, slices = slices[~holed], slices[holed]
    if not len(slices):
        return np.asarray(whole)
    strips = _strips(slices, (np.cumsum(holed) - 1)[host], holes)
    budget.spend(len(strips.start) + int((strips.last - strips.first).sum()))
    gaps = _gaps(slices, holes, strips)
    return np.concatenate([whole, tighten(_fuse(gaps[occupied(close(gaps))]))])


def minus(b: Slices, a: Slices, budget: Budget) -> Slices:
    """`b` [m, 6] without `a` [n, 6], both tight, `a` disjoint. Where `b` overlaps itself, so does the result."""
    host, _, holes = join(b, a, budget)
    return cut(b, host, holes, budget)
