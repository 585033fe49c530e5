"""Backward attention of one tile: up to five products by BLAS, the probabilities made again between them.

    dS = p (dP - delta)      dQ += scale dS K      dK += scale dS^T Q      dV += p^T dO

With dropout factors f (core/dropout.py) dP = f (dO V^T) and dV += (f p)^T dO.

Scores and all that has their shape are [batch, key_heads, keys, group, rows], as in the forward pass (softmax.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.numpy.call import Call, Part
from ringmpi.backends.numpy.dropout import Dropout
from ringmpi.backends.numpy.scores import Scratch, distance_of, subtract_distance, tile_scores
from ringmpi.backends.numpy.softmax import exclude
from ringmpi.backends.numpy.tiles import Tile
from ringmpi.core.gradients import Gradients, Saved
from ringmpi.core.partial import Array, shift_of
from ringmpi.core.scoring import Scoring


@dataclass(frozen=True)
class BackwardCall(Call):
    """The arguments of one call of `attend_backward`."""

    saved: Saved
    into: Gradients

    def key_tile(self, part: Part, keys: slice, scratch: Scratch) -> BackwardTile:
        """Some heads of one key tile."""
        key, value = self.widened(part, keys, self.saved.delta.dtype, scratch)
        batch, key_heads, _ = part
        saved, into = self.saved, self.into
        return BackwardTile(
            first=keys.start,
            key=key,
            value=value,
            query=self.of_queries(self.q, part),
            saved=Saved(
                *(self.of_queries(array, part) for array in (saved.grad_output, saved.log_sum_exp, saved.delta))
            ),
            into=Gradients(
                query=None if into.query is None else self.of_queries(into.query, part),
                key=None if into.key is None else into.key[batch, key_heads, keys],
                value=None if into.value is None else into.value[batch, key_heads, keys],
                slope=into.slope.reshape(-1, self.heads.group)[part[1:]],
            ),
            slopes=self.slopes(part),
            dropout=self.dropout(part),
            finite=self.finite,
        )


@dataclass(frozen=True)
class BackwardTile:
    """Some heads of one key tile.

    first       local key with which key, value and their gradients begin
    key, value  [batch, key_heads, keys, dim], accumulation dtype
    query       [batch, key_heads, group, queries, dim], as given
    saved, into heads split likewise; into.key and into.value are views of these keys
    slopes      [key_heads, group] or None
    dropout     None: nothing is dropped
    finite      False: q, k, v or dO hold NaN or inf
    """

    first: int
    key: Array
    value: Array
    query: Array
    saved: Saved
    into: Gradients
    slopes: NDArray[np.float64] | None
    dropout: Dropout | None
    finite: bool

    def attend(self, tile: Tile, scoring: Scoring, scratch: Scratch) -> int:
        """Add the gradients of one tile. Returns the pairs attended to, over these heads."""
        inside = slice(tile.keys.start - self.first, tile.keys.stop - self.first)
        key, value, query = self.key[:, :, inside], self.value[:, :, inside], self.query[:, :, :, tile.rows]
        scores = tile_scores(query, key, scoring, scratch)
        slope_of_cap = None if scoring.softcap is None else 1 - np.square(scores / scoring.softcap)
        if self.slopes is not None:
            subtract_distance(scores, self.slopes, tile)
        pairs = exclude(scores, tile)
        log_sum_exp = self.saved.log_sum_exp[:, :, :, tile.rows]
        scores -= shift_of(log_sum_exp)[:, :, None]
        weights = np.exp(scores, out=scores)
        grad_output = scratch.copy("grad_output", self.saved.grad_output[:, :, :, tile.rows], key.dtype)
        factors = None if self.dropout is None else self.dropout.factors(tile, key.dtype, scratch)
        if self.into.query is None and self.into.key is None:
            self._clear_excluded(tile, weights)
            self._add_to_value(weights if factors is None else weights * factors, grad_output, inside)
            return pairs * prod(query.shape[:3])
        score_gradient = self._score_gradient(weights, value, grad_output, factors, tile, scratch)
        if factors is not None:
            weights *= factors
        if self.slopes is not None:
            into_slope = np.einsum("bhkgr,kr->hg", score_gradient, distance_of(tile, key.dtype))
            np.subtract(self.into.slope, into_slope, out=self.into.slope)
        if slope_of_cap is not None:
            if not self.finite:
                slope_of_cap[score_gradient == 0] = 0  # of a pair that the mask leaves out: NaN there means nothing
            score_gradient *= slope_of_cap
        self._add(weights, score_gradient, (key, query, grad_output), (inside, tile.rows), scoring.scale)
        return pairs * prod(query.shape[:3])

    def _score_gradient(
        self, weights: Array, value: Array, grad_output: Array, factors: Array | None, tile: Tile, scratch: Scratch
    ) -> Array:
        """DS = p (f dO V^T - delta), 0 for pairs that the mask leaves out whatever NaN stands there."""
        gradient = scratch.take("score_gradient", weights.shape, weights.dtype)
        np.matmul(value, _rows_last(grad_output), out=_flat(gradient))
        if factors is not None:
            gradient *= factors
        gradient -= self.saved.delta[:, :, None, :, tile.rows]
        gradient *= weights
        self._clear_excluded(tile, gradient, weights)
        return gradient

    def _clear_excluded(self, tile: Tile, *arrays: Array) -> None:
        """0 for pairs that the mask leaves out, whatever NaN stands there."""
        if not self.finite and tile.start is not None and tile.stop is not None:
            keys = np.arange(tile.keys.start, tile.keys.stop)[:, None]
            excluded = (keys < tile.start) | (keys >= tile.stop)
            for array in arrays:
                np.copyto(array, 0, where=excluded[:, None])

    def _add(
        self,
        weights: Array,
        score_gradient: Array,
        operands: tuple[Array, Array, Array],
        places: tuple[slice, slice],
        scale: float,
    ) -> None:
        """The three products that end in a gradient."""
        key, query, grad_output = operands
        inside, rows = places
        into, flat_gradient, (batch, key_heads, group, height, _) = self.into, _flat(score_gradient), query.shape
        if into.query is not None:
            by_query = np.matmul(flat_gradient.swapaxes(-1, -2), key if self.finite else _cleaned(key))
            into.query[:, :, :, rows] += scale * by_query.reshape(batch, key_heads, group, height, -1)
        if into.key is not None:
            query = query.astype(key.dtype)
            flat_query = (query if self.finite else _cleaned(query)).reshape(batch, key_heads, group * height, -1)
            into.key[:, :, inside] += scale * np.matmul(flat_gradient, flat_query)
        self._add_to_value(weights, grad_output, inside)

    def _add_to_value(self, weights: Array, grad_output: Array, inside: slice) -> None:
        """The product that ends in the gradient of the values."""
        value = self.into.value
        if value is None:
            return
        clean = grad_output if self.finite else _cleaned(grad_output)
        batch, key_heads = clean.shape[:2]
        value[:, :, inside] += np.matmul(_flat(weights), clean.reshape(batch, key_heads, -1, clean.shape[-1]))
        if not self.finite and clean is not grad_output:
            self._add_special(value, weights, grad_output, inside)

    @staticmethod
    def _add_special(value: Array, weights: Array, grad_output: Array, inside: slice) -> None:
        """Bring NaN and inf of dO back to the gradients of the values of the keys that their rows see."""
        special = np.where(np.isfinite(grad_output), 0, grad_output)
        for b, h, g, row in zip(*np.nonzero(special.any(-1)), strict=True):
            seen = weights[b, h, :, g, row] != 0
            value[b, h, inside][seen] += weights[b, h, seen, g, row, None] * special[b, h, g, row]


def _flat(array: Array) -> Array:
    """[batch, key_heads, keys, group, rows] with group and rows as one axis."""
    return array.reshape(*array.shape[:3], -1)


def _rows_last(array: Array) -> Array:
    """[batch, key_heads, group, rows, dim] as [batch, key_heads, dim, group * rows]."""
    batch, key_heads, group, rows, dim = array.shape
    return array.reshape(batch, key_heads, group * rows, dim).swapaxes(-1, -2)


def _cleaned(array: Array) -> Array:
    """0 in place of NaN and inf; the array itself where there is none."""
    finite = np.isfinite(array)
    return array if finite.all() else np.where(finite, array, array.dtype.type(0))
