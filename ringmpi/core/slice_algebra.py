"""And, or of masks: tables of slices (core/slices.py) in, one table of disjoint slices out.

No loop runs over slices: whole tables are joined and cut at once (core/slice_cut.py). For "or", slices that are
disjoint in q make a layer, and layers are merged pairwise, all pairs at once, the smaller cut by the larger: as in
merge sort, no slice has to meet all others one by one.

The result can be quadratic in the input: n thin strips of keys crossing n thin bands leave about n^2 slices. Such a
mask is refused with MaskError before memory or patience run out, never cut short.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ringmpi.core.slice_cut import OVERLAP_LIMIT, Budget, check_size, join, minus
from ringmpi.core.slices import K0, K1, LOW, NO_SLICES, Q0, Q1, Ints, Slices, count_pairs, order, tighten
from ringmpi.errors import MaskError

__all__ = ["OVERLAP_LIMIT", "intersect", "unite"]

POSITION_LIMIT = 1 << 37  # OVERLAP_LIMIT layers side by side still fit in int64
FIRST_LAYERS = 128


def _layers(slices: Slices) -> Ints:
    """A layer for each slice: disjoint in q within a layer, as few layers as can be, the fullest one is 0.

    By ascending q0, a slice opens a new layer where more slices are open than ever before; any other takes over the
    layer of the slice that ended first among those not yet taken over. Following `heir` back leads to the opener.
    """
    n = len(slices)
    by_start = np.argsort(slices[:, Q0], kind="stable")
    start, stop = slices[by_start, Q0], slices[by_start, Q1]
    by_stop = np.argsort(stop, kind="stable")
    n_open = np.arange(1, n + 1) - np.searchsorted(stop[by_stop], start, "right")
    opens = np.diff(np.maximum.accumulate(n_open), prepend=0) > 0
    n_layers = np.cumsum(opens)
    heir = np.where(opens, np.arange(n), by_stop[np.maximum(np.arange(n) - n_layers, 0)])
    while (heir[heir] != heir).any():
        heir = heir[heir]
    layer = np.empty(n, np.int64)
    layer[by_start] = n_layers[heir] - 1
    fullest_first = np.argsort(-np.bincount(layer, count_pairs(slices)), kind="stable")
    return np.asarray(np.argsort(fullest_first)[layer])


def _merge_layers(slices: Slices, layer: Ints, budget: Budget) -> Slices:
    """All layers become one. Each round cuts layer 2 n + 1 by layer 2 n, for all n in one call.

    For that pair n is moved by n * stride in q and 2 n * stride in k, hence n * stride in j - i: so far that pairs
    of layers cannot meet on any axis.
    """
    origin = slices[:, Q0].min()
    stride = np.ptp(slices[:, Q0 : Q1 + 1]) + np.ptp(slices[:, K0 : K1 + 1]) + 1
    move = np.array([1, 1, 2, 2, 1, 1]) * stride
    while layer.max() > 0:
        apart = slices + (layer >> 1)[:, None] * move
        even = layer % 2 == 0
        apart = np.concatenate([apart[even], minus(apart[~even], apart[even], budget)])
        layer = (apart[:, Q0] - origin) // stride
        slices = apart - layer[:, None] * move
    return slices


def _checked(slices: Slices) -> Slices:
    """Tight, and with positions that leave room in int64 for many slices side by side."""
    tight = tighten(slices)
    reach = int(np.abs(tight[:, :LOW]).max(initial=0))
    if reach > POSITION_LIMIT:
        raise MaskError(
            f"slices reach position {reach}; at most {POSITION_LIMIT} (2^37) can be resolved. "
            f"Bound queries and keys by the lengths of the sequences."
        )
    check_size(len(tight))
    return tight


def intersect(a: Slices, b: Slices) -> Slices:
    """The pairs in both `a` and `b`.

    Parameters
    ----------
    a, b : int64 [n, 6] and [m, 6]
        Each disjoint.

    Returns
    -------
    int64 [l, 6]
        Disjoint, tight, by ascending q0.

    Raises
    ------
    MaskError
        If more than `OVERLAP_LIMIT` slices of `a` and `b` may meet.
    """
    return order(join(tighten(a), tighten(b), Budget())[2])


def unite(tables: Sequence[Slices]) -> Slices:
    """The pairs in any of `tables`, each once.

    The fullest layers are merged first, 128 of them, and what they cover is cut from the rest: large slices absorb
    the small ones before those are cut up. The number doubles from round to round.

    Parameters
    ----------
    tables : sequence of int64 [n, 6]
        May overlap in any way; finite queries and keys.

    Returns
    -------
    int64 [l, 6]
        Disjoint, tight, by ascending q0.

    Raises
    ------
    MaskError
        If a position is beyond `POSITION_LIMIT`, a slice has more than 2^62 pairs, one step meets more than
        `OVERLAP_LIMIT` overlaps, all steps `TOTAL_LIMIT`, or the result passes `OVERLAP_LIMIT` slices.
    """
    rest = _checked(np.concatenate([NO_SLICES, *tables]))
    united, budget, at_once = NO_SLICES, Budget(), FIRST_LAYERS
    while len(rest):
        layer = _layers(rest)
        now = layer < at_once
        merged = _merge_layers(rest[now], layer[now], budget)
        rest = minus(rest[~now], merged, budget)
        united = np.concatenate([united, merged])
        check_size(len(united) + len(rest))
        at_once *= 2
    return order(united)
