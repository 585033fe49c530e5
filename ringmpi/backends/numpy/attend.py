"""The NumPy backend: for each tile two products by BLAS, and the softmax in place between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.numpy.scores import Scratch, subtract_distance, tile_scores
from ringmpi.backends.numpy.softmax import exclude, to_weights
from ringmpi.backends.numpy.tiles import Tile, key_tiles
from ringmpi.backends.numpy.values import Special, add_special, take_special, weigh
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.partial import Array, Partial, empty_partial
from ringmpi.core.scoring import Scoring
from ringmpi.core.shapes import HeadShape, head_shape
from ringmpi.core.work import Work
from ringmpi.errors import ShapeError

Part = tuple[slice, slice, slice]

CALL_SECONDS = 0.05
PRODUCT_FLOPS_PER_SECOND = 80e9
SOFTMAX_SECONDS_PER_SCORE = 1.5e-9


class NumpyBackend:
    """Block attention on one CPU core with NumPy; backends/base.py has the contract.

    Holds scratch only: a few arrays of about tile_rows x tile_keys numbers, whatever the lengths. So only one thread
    at a time may use it.

    Parameters
    ----------
    tile_rows, tile_keys : int
        Largest tile. 256 x 1024 float32 scores are 1 MiB and stay in a second-level cache.
    """

    name: ClassVar[str] = "numpy"

    def __init__(self, *, tile_rows: int = 256, tile_keys: int = 1024) -> None:
        self.tile_rows = tile_rows
        self.tile_keys = tile_keys
        self._scratch = Scratch()

    def call_budget(self, heads: HeadShape) -> int:
        """Rows x keys that take about 0.05 s over all heads: how to cut work so that messages progress meanwhile."""
        flops = 2 * (heads.head_dim + heads.value_dim)
        seconds = heads.query_slabs * (flops / PRODUCT_FLOPS_PER_SECOND + SOFTMAX_SECONDS_PER_SCORE)
        return max(int(CALL_SECONDS / seconds), 1)

    def attend(
        self,
        q: Array,
        k: Array,
        v: Array,
        work: Work,
        scoring: Scoring,
        *,
        finite: bool = True,
        into: Partial | None = None,
    ) -> tuple[Partial, int]:
        """Attend queries to the keys that `work` names: see `ringmpi.backends.base.Backend.attend`."""
        heads = head_shape(q.shape, k.shape, v.shape)
        partial = _partial_for(q, heads, into)
        call = _Call(heads, q, k, v, partial, scoring, finite, self._scratch)
        attended = 0
        # Input may hold inf, or overflow in a product: the result says so, a warning would add nothing.
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            for keys, tiles in key_tiles(work, self.tile_rows, self.tile_keys):
                for part in _parts(heads, self._heads_at_once(heads, keys, tiles)):
                    key_tile = call.key_tile(part, keys)
                    attended += sum(key_tile.attend(tile, scoring, self._scratch) for tile in tiles)
        return partial, attended

    def _heads_at_once(self, heads: HeadShape, keys: slice, tiles: list[Tile]) -> int:
        """Query heads whose scores, and K and V, take no more scratch than one full tile."""
        tallest = max(tile.rows.stop - tile.rows.start for tile in tiles)
        row = max(tallest, heads.head_dim + heads.value_dim)
        return int(max(self.tile_rows * self.tile_keys // (row * (keys.stop - keys.start)), 1))


@dataclass(frozen=True)
class _Call:
    """The arguments of one call of `attend`."""

    heads: HeadShape
    q: Array
    k: Array
    v: Array
    partial: Partial
    scoring: Scoring
    finite: bool
    scratch: Scratch

    def key_tile(self, part: Part, keys: slice) -> _KeyTile:
        """Some heads of one key tile, K and V widened once for all its tiles."""
        batch, key_heads, group = part
        dtype, slopes = self.partial.row_max.dtype, self.scoring.alibi_slopes
        value = self.scratch.copy("value", self.v[batch, key_heads, keys], dtype)
        return _KeyTile(
            first=keys.start,
            key=self.scratch.copy("key", self.k[batch, key_heads, keys], dtype),
            value=value,
            special=None if self.finite else take_special(value, keys.start),
            query=self._split(self.q)[part],
            into=Partial(*(self._split(x)[part] for x in _arrays(self.partial))),
            slopes=None if slopes is None else slopes.reshape(-1, self.heads.group)[key_heads, group],
        )

    def _split(self, array: Array) -> Array:
        """A view with the query heads split in key_heads x group (to split an axis never copies)."""
        heads = self.heads
        return array.reshape(heads.batch, heads.key_heads, heads.group, *array.shape[2:])


@dataclass(frozen=True)
class _KeyTile:
    """What all tiles of one key tile share.

    key, value  [batch, key_heads, keys, dim]            from local key `first` on
    query       [batch, key_heads, group, queries, dim]  all queries, as given
    into        [batch, key_heads, group, queries]       views of the carried Partial
    slopes      [key_heads, group] or None
    """

    first: int
    key: Array
    value: Array
    special: Special | None
    query: Array
    into: Partial
    slopes: NDArray[np.float64] | None

    def attend(self, tile: Tile, scoring: Scoring, scratch: Scratch) -> int:
        """Absorb one tile. Returns the pairs attended to, over these heads."""
        inside = slice(tile.keys.start - self.first, tile.keys.stop - self.first)
        query = self.query[:, :, :, tile.rows]
        into = Partial(*(x[:, :, :, tile.rows] for x in _arrays(self.into)))
        scores = tile_scores(query, self.key[:, :, inside], scoring, scratch)
        if self.slopes is not None:
            subtract_distance(scores, self.slopes, tile)
        pairs = exclude(scores, tile)
        weights = to_weights(scores, into)
        weighted = weigh(weights, self.value[:, :, inside])
        if self.special is not None:
            add_special(weighted, weights, self.special, tile)
        np.add(into.weighted_sum, weighted, out=into.weighted_sum)
        return pairs * prod(query.shape[:3])


def _arrays(partial: Partial) -> tuple[Array, Array, Array]:
    return partial.row_max, partial.row_sum, partial.weighted_sum


def _partial_for(q: Array, heads: HeadShape, into: Partial | None) -> Partial:
    """`into` if it is one of these queries, else an error; a fresh Partial for None."""
    dtype = accumulate_dtype(q.dtype)
    shape = (heads.batch, heads.query_heads, q.shape[2], heads.value_dim)
    if into is None:
        return empty_partial(*shape, dtype)
    if into.weighted_sum.shape != shape or into.weighted_sum.dtype != dtype:
        raise ShapeError(
            f"the carried partial is {into.weighted_sum.shape} {into.weighted_sum.dtype}, but these queries and values "
            f"need {shape} {dtype}. Carry a partial only over calls with the same queries."
        )
    return into


def _parts(heads: HeadShape, count: int) -> Iterator[Part]:
    """All heads, cut in (batch, key_heads, group) parts of at most `count` query heads, at least one."""
    group = min(count, heads.group)
    key_heads = min(max(count // heads.group, 1), heads.key_heads)
    batch = min(max(count // heads.query_heads, 1), heads.batch)
    for b in range(0, heads.batch, batch):
        for h in range(0, heads.key_heads, key_heads):
            for g in range(0, heads.group, group):
                yield slice(b, b + batch), slice(h, h + key_heads), slice(g, g + group)
