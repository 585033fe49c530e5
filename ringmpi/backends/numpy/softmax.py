"""What is done to the scores of one tile: mask them, then the online softmax into the carried Partial.

Scores are [batch, key_heads, keys, group, rows], keys before rows. So K needs no transposition, and maxima and shifts
run along contiguous rows: a tenth of the whole time, measured, against rows before keys.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.numpy.tiles import Tile
from ringmpi.core.partial import Array, Partial, shift_of


def exclude(scores: Array, tile: Tile) -> int:
    """Write -inf over the scores of the pairs that the mask leaves out, and count those left.

    Only two strips are touched: keys before the last start, and keys from the first stop on.

    Parameters
    ----------
    scores : array [batch, key_heads, keys, group, rows]
        Written.
    tile : Tile

    Returns
    -------
    int
        Pairs left to each query head.
    """
    pairs: int = scores.shape[2] * scores.shape[4]
    if tile.start is None or tile.stop is None:
        return pairs
    start, stop = tile.start - tile.keys.start, tile.stop - tile.keys.start
    before, after = int(start.max()), int(stop.min())
    pairs -= _exclude_where(scores[:, :, :before], np.arange(before)[:, None] < start)
    return pairs - _exclude_where(scores[:, :, after:], np.arange(after, scores.shape[2])[:, None] >= stop)


def _exclude_where(scores: Array, excluded: NDArray[np.bool_]) -> int:
    np.copyto(scores, -np.inf, where=excluded[:, None])
    return int(np.count_nonzero(excluded))


def to_weights(scores: Array, into: Partial, below: Array | None = None) -> Array:
    """Scores to weights e^(score - row_max), in place, while row_max and row_sum of the rows are carried on.

    The sums of a tile start at zero and are added once: one running sum over all keys is four times less accurate.

    Parameters
    ----------
    scores : array [batch, key_heads, keys, group, rows]
        -inf where excluded. Written.
    into : Partial
        Views [batch, key_heads, group, rows] of the carried Partial. Written: its weighted_sum is brought to the new
        row_max, so that the weighted sum of this tile has only to be added.
    below : array like `scores`, or None
        Written: scores - row_max, for who wants to look at them too.

    Returns
    -------
    array
        `scores`, now weights.

    Source
    ------
    Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", section 3.1.
    """
    row_max = np.maximum(into.row_max, scores.max(2))
    shift = shift_of(row_max)
    shifted = np.subtract(scores, shift[:, :, None], out=scores if below is None else below)
    weights = np.exp(shifted, out=scores)
    rescale = np.exp(into.row_max - shift)
    into.row_max[...] = row_max
    into.row_sum[...] = rescale * into.row_sum + sum_over_keys(weights)
    np.multiply(into.weighted_sum, rescale[..., None], out=into.weighted_sum)
    return weights


def sum_over_keys(weights: Array, factors: Array | None = None) -> Array:
    """[batch, key_heads, group, rows], by BLAS: four times as fast as `weights.sum(2)`. factors: of keys, [keys]."""
    batch, key_heads, keys, group, rows = weights.shape
    flat = weights.reshape(batch, key_heads, keys, group * rows)
    sums: Array = np.matmul(np.ones(keys, weights.dtype) if factors is None else factors, flat)
    return sums.reshape(batch, key_heads, group, rows)
