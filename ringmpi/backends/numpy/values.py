"""Weights times values; values that are NaN or inf are kept from rows that may not see them.

In a matrix product 0 x NaN is NaN, so one masked key would spoil every row of its tile. Therefore NaN and inf are
taken out of the values (0 in their place), and brought back after the product to the rows that see the key. A sum that
no NaN or inf reaches keeps every bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringmpi.backends.numpy.tiles import Tile
from ringmpi.core.partial import Array
from ringmpi.core.work import Ints


@dataclass(frozen=True)
class Special:
    """What was taken out of the values of a key tile.

    keys    int64 [n]                              local keys with NaN or inf in any head, ascending
    values  array [batch, key_heads, n, value_dim] NaN and inf of these keys, 0 elsewhere
    """

    keys: Ints
    values: Array


def weigh(weights: Array, value: Array) -> Array:
    """Weighted sums [batch, key_heads, group, rows, value_dim] of the values [batch, key_heads, keys, value_dim]."""
    batch, key_heads, keys, group, rows = weights.shape
    flat = weights.reshape(batch, key_heads, keys, group * rows)
    weighted: Array = np.matmul(flat.swapaxes(-1, -2), value)
    return weighted.reshape(batch, key_heads, group, rows, value.shape[-1])


def take_special(value: Array, first_key: int) -> Special | None:
    """Write 0 over NaN and inf in `value` [batch, key_heads, keys, value_dim]; what was there, None if nothing."""
    finite = np.isfinite(value)
    columns = np.flatnonzero(~finite.all((0, 1, 3)))
    if not len(columns):
        return None
    special = Special(columns + first_key, np.where(finite, 0, value)[:, :, columns])
    np.copyto(value, 0, where=~finite)
    return special


def add_special(weighted: Array, weights: Array, special: Special, tile: Tile) -> None:
    """Bring NaN and inf back to the rows that see them, rows that see the same ones together.

    Parameters
    ----------
    weighted : array [batch, key_heads, group, rows, value_dim]
        Sums over the finite values; written.
    weights : array [batch, key_heads, keys, group, rows]
    special : Special
    tile : Tile
    """
    rows = tile.rows.stop - tile.rows.start
    start = np.full(rows, tile.keys.start) if tile.start is None else tile.start
    stop = np.full(rows, tile.keys.stop) if tile.stop is None else tile.stop
    seen = np.searchsorted(special.keys, np.stack([start, stop], 1))
    for first, end in np.unique(seen[seen[:, 0] < seen[:, 1]], axis=0):
        alike = np.flatnonzero((seen == (first, end)).all(1))
        columns = special.keys[first:end] - tile.keys.start
        chosen = np.moveaxis(weights[:, :, columns][..., alike], 2, -1)
        extra = chosen @ special.values[:, :, None, first:end]
        sums = weighted[:, :, :, alike]
        weighted[:, :, :, alike] = np.where(np.isfinite(extra), sums, sums + extra)
