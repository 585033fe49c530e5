"""Forward attention of one tile: two products by BLAS, and the softmax in place between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.numpy.call import Call, Part
from ringmpi.backends.numpy.dropout import Dropout
from ringmpi.backends.numpy.record import to_recorded_weights
from ringmpi.backends.numpy.scores import Scratch, subtract_distance, tile_scores
from ringmpi.backends.numpy.softmax import exclude, to_weights
from ringmpi.backends.numpy.tiles import Tile
from ringmpi.backends.numpy.values import Special, add_special, take_special, weigh
from ringmpi.core.partial import Array, Partial
from ringmpi.core.scoring import Scoring


@dataclass(frozen=True)
class ForwardCall(Call):
    """The arguments of one call of `attend`."""

    partial: Partial

    def key_tile(self, part: Part, keys: slice, scratch: Scratch) -> ForwardTile:
        """Some heads of one key tile."""
        key, value = self.widened(part, keys, self.partial.row_max.dtype, scratch)
        return ForwardTile(
            first=keys.start,
            key=key,
            value=value,
            special=None if self.finite else take_special(value, keys.start),
            query=self.of_queries(self.q, part),
            into=_mapped(self.partial, lambda array: self.of_queries(array, part)),
            slopes=self.slopes(part),
            dropout=self.dropout(part),
        )


@dataclass(frozen=True)
class ForwardTile:
    """What all tiles of one key tile share.

    key, value  [batch, key_heads, keys, dim]            from local key `first` on
    query       [batch, key_heads, group, queries, dim]  all queries, as given
    into        [batch, key_heads, group, queries]       views of the carried Partial, and of its record
    slopes      [key_heads, group] or None
    dropout     None: nothing is dropped
    """

    first: int
    key: Array
    value: Array
    special: Special | None
    query: Array
    into: Partial
    slopes: NDArray[np.float64] | None
    dropout: Dropout | None

    def attend(self, tile: Tile, scoring: Scoring, scratch: Scratch) -> int:
        """Absorb one tile. Returns the pairs attended to, over these heads."""
        inside = slice(tile.keys.start - self.first, tile.keys.stop - self.first)
        query = self.query[:, :, :, tile.rows]
        into = _mapped(self.into, lambda array: array[:, :, :, tile.rows])
        scores = tile_scores(query, self.key[:, :, inside], scoring, scratch)
        if self.slopes is not None:
            subtract_distance(scores, self.slopes, tile)
        pairs = exclude(scores, tile)
        if into.record is None:
            weights = to_weights(scores, into)
        else:
            weights = to_recorded_weights(scores, into, into.record, tile, scratch)
        if self.dropout is not None:
            weights *= self.dropout.factors(tile, weights.dtype, scratch)
        weighted = weigh(weights, self.value[:, :, inside])
        if self.special is not None:
            add_special(weighted, weights, self.special, tile)
        np.add(into.weighted_sum, weighted, out=into.weighted_sum)
        return pairs * prod(query.shape[:3])


def _mapped(partial: Partial, view: Callable[[Array], Array]) -> Partial:
    """A Partial of views of its arrays."""
    record = partial.record and partial.record.mapped(view)
    return Partial(view(partial.row_max), view(partial.row_sum), view(partial.weighted_sum), record)
