"""Scores of one tile, and the buffers they live in."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.numpy.tiles import Tile
from ringmpi.core.partial import Array
from ringmpi.core.scoring import Scoring


class Scratch:
    """Named buffers that grow to their largest use and are used again."""

    def __init__(self) -> None:
        self._buffers: dict[str, NDArray[np.uint8]] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array of `shape`, contents undefined, in the memory of the last one of this name."""
        size = prod(shape) * dtype.itemsize
        if name not in self._buffers or self._buffers[name].size < size:
            self._buffers[name] = np.empty(size, np.uint8)
        return self._buffers[name][:size].view(dtype).reshape(shape)

    def copy(self, name: str, array: Array, dtype: np.dtype[Any]) -> Array:
        """A contiguous copy of `array` in `dtype`: for other strides BLAS would give other bits."""
        copied = self.take(name, array.shape, dtype)
        copied[...] = array
        return copied


def tile_scores(query: Array, key: Array, scoring: Scoring, scratch: Scratch) -> Array:
    """Scores of all pairs of a tile, not masked and without ALiBi. The heads of a group are rows of one product.

    Parameters
    ----------
    query : array [batch, key_heads, group, rows, head_dim]
        Any supported dtype and strides.
    key : array [batch, key_heads, keys, head_dim]
        Contiguous, in the accumulation dtype.
    scoring : Scoring
    scratch : Scratch

    Returns
    -------
    array [batch, key_heads, keys, group, rows]
        In scratch; dtype of `key`.
    """
    batch, key_heads, group, rows, head_dim = query.shape
    wide = scratch.copy("query", query, key.dtype)
    wide *= scoring.scale if scoring.softcap is None else scoring.scale / scoring.softcap
    columns = wide.reshape(batch, key_heads, group * rows, head_dim).swapaxes(-1, -2)
    scores = scratch.take("scores", (batch, key_heads, key.shape[2], group * rows), key.dtype)
    np.matmul(key, columns, out=scores)
    if scoring.softcap is not None:
        np.tanh(scores, out=scores)
        scores *= scoring.softcap
    return scores.reshape(batch, key_heads, key.shape[2], group, rows)


def subtract_distance(scores: Array, slopes: NDArray[np.float64], tile: Tile) -> None:
    """ALiBi: subtract slopes [key_heads, group] times |i - j| from `scores`; i, j: global positions, exact integers."""
    distance = distance_of(tile, scores.dtype)
    scores -= slopes.astype(scores.dtype)[:, None, :, None] * distance[:, None]


def distance_of(tile: Tile, dtype: np.dtype[Any]) -> Array:
    """|i - j| of all pairs of a tile, [keys, rows]."""
    rows, keys = tile.positions()
    distance: Array = np.abs(keys[:, None] - rows).astype(dtype)
    return distance
