"""What a tile adds to the record of its rows (core/record.py): beside the softmax, of which no bit changes."""

from __future__ import annotations

import numpy as np

from ringmpi.backends.numpy.scores import Scratch
from ringmpi.backends.numpy.softmax import sum_over_keys, to_weights
from ringmpi.backends.numpy.tiles import Tile
from ringmpi.core.partial import Array, Partial, shift_of
from ringmpi.core.record import NO_KEY, RecordSums, Side, first_of_largest, sums_relative_to
from ringmpi.core.work import Ints


def to_recorded_weights(scores: Array, into: Partial, record: RecordSums, tile: Tile, scratch: Scratch) -> Array:
    """`to_weights`, with the record of these rows carried on too.

    Parameters
    ----------
    scores : array [batch, key_heads, keys, group, rows]
        -inf where excluded. Written.
    into, record : Partial, RecordSums
        Views [batch, key_heads, group, rows] of the carried ones. Written.
    tile : Tile
    scratch : Scratch

    Returns
    -------
    array
        `scores`, now weights.
    """
    top = scores.max(2)
    record.top_key[...] = first_of_largest((into.row_max, record.top_key), (top, _top_key(scores, top, into, tile)))
    shift = shift_of(np.maximum(into.row_max, top))
    carried = sums_relative_to(shift, Side(record, into.row_max, into.row_sum))
    below = scratch.take("below", scores.shape, scores.dtype)
    weights = to_weights(scores, into, below)
    np.maximum(below, np.finfo(scores.dtype).min, out=below)  # weight 0 times -inf would be NaN
    below *= weights
    score_sum = sum_over_keys(below)
    added = score_sum, _distance_sum(weights, tile, below), _sink_sum(weights, tile, record.sinks)
    for sums, before, new in zip((record.score_sum, record.distance_sum, record.sink_sum), carried, added, strict=True):
        np.add(before, new, out=sums)
    return weights


def _top_key(scores: Array, top: Array, into: Partial, tile: Tile) -> Ints:
    """The first key of score `top`, in rows of which none was larger yet; NO_KEY in others."""
    _, keys = tile.positions()
    found = np.full(top.shape, NO_KEY, np.int64)
    wanted = np.where((top >= into.row_max) & ~np.isneginf(top), top, top.dtype.type(np.nan))
    places = np.flatnonzero(scores == wanted[:, :, None])[::-1]  # in reverse: of several for one row the last one stays
    batch, key_head, key, group, row = np.unravel_index(places, scores.shape)
    found[batch, key_head, group, row] = keys[key]
    return found


def _distance_sum(weights: Array, tile: Tile, spare: Array) -> Array:
    """Sums of weight times |i - j|. `spare`: like `weights`, to be written.

    Where all rows are on one side of all keys, a distance is that to the nearest key plus that from it on: two sums by
    BLAS, of numbers >= 0, so nothing cancels.
    """
    rows, keys = tile.positions()
    if rows[0] >= keys[-1] or rows[-1] <= keys[0]:
        nearest = keys[-1] if rows[0] >= keys[-1] else keys[0]
        to_nearest, from_it = (np.abs(side - nearest).astype(weights.dtype) for side in (rows, keys))
        sums: Array = to_nearest * sum_over_keys(weights) + sum_over_keys(weights, from_it)
        return sums
    from_first = [(side - keys[0]).astype(weights.dtype) for side in (keys, rows)]
    distance = np.subtract.outer(*from_first)
    np.multiply(weights, np.abs(distance, out=distance)[:, None], out=spare)
    return sum_over_keys(spare)


def _sink_sum(weights: Array, tile: Tile, sinks: int) -> Array:
    _, keys = tile.positions()
    sums: Array = weights[:, :, : int(np.searchsorted(keys, sinks))].sum(2)
    return sums
