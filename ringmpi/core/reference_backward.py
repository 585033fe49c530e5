"""The judge of gradients: the backward pass by its plain formula, in any dtype. It shares no code with the kernels.

    p = e^(s - log_sum_exp)                   delta_i = dO_i . O_i - d log_sum_exp_i
    dS = p (dO V^T - delta)                   dV = p^T dO
    dQ = scale (dS cap'(scale Q K^T)) K       dK = scale (dS cap'(scale Q K^T))^T Q

With dropout dO V^T, and p in dV, are multiplied by 0 or 1 / (1 - dropout), pair by pair.

Some rows of dQ, and some keys of dK and dV: the other side passes by in slabs, so inputs may be large, and a row brings
its log_sum_exp and delta along.

A row that sees no key gives and gets 0. NaN and inf go where IEEE arithmetic takes them, but only over pairs that the
mask allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ringmpi.core.reference import Array, Bools, Ints, KeySlab, drop_factors
from ringmpi.core.scoring import Scoring


@dataclass(frozen=True)
class RowSlab:
    """Some rows of queries, in the dtype of all arithmetic with them.

    positions           int64 [rows]
    q, grad_output      [batch, query_heads, rows, head_dim], [batch, query_heads, rows, value_dim]
    log_sum_exp, delta  [batch, query_heads, rows]
    """

    positions: Ints
    q: Array
    grad_output: Array
    log_sum_exp: Array
    delta: Array


def query_gradients(rows: Sequence[RowSlab], slabs: Iterable[KeySlab], scoring: Scoring) -> list[Array]:
    """DQ of some rows, which come once in each dtype, from keys that arrive in slabs, each key once.

    Returns
    -------
    list of array [batch, query_heads, rows, head_dim]
    """
    sums = [np.zeros_like(these.q) for these in rows]
    with np.errstate(invalid="ignore", over="ignore"):
        for slab in slabs:
            for total, these in zip(sums, rows, strict=True):
                by_product, _ = _by_pair(these, slab, scoring)
                total += allowed_product(by_product, _per_query_head(slab.k, these.q), slab.allowed)
    return sums


def key_gradients(
    keys: KeySlab, slabs: Iterable[tuple[Bools, Sequence[RowSlab]]], scoring: Scoring, dtypes: Sequence[np.dtype[Any]]
) -> list[tuple[Array, Array, Array]]:
    """DK and DV of some keys, from rows that arrive in slabs, each row once.

    Parameters
    ----------
    keys : KeySlab
        Its `allowed` is not looked at.
    slabs : iterable of (bool [rows, keys], rows once in each dtype)
        Which row sees which key.

    Returns
    -------
    list of (key, value, weight)
        One a dtype: [batch, key_heads, keys, head_dim], [batch, key_heads, keys, value_dim], and the sum of all
        probabilities that a key has got, [batch, key_heads, keys].
    """
    heads = keys.k.shape[1]
    sums = [
        tuple(np.zeros(shape, dtype) for shape in (keys.k.shape, keys.v.shape, keys.k.shape[:3])) for dtype in dtypes
    ]
    with np.errstate(invalid="ignore", over="ignore"):
        for allowed, rows in slabs:
            for (key, value, weight), these in zip(sums, rows, strict=True):
                by_product, dropped = _by_pair(these, replace(keys, allowed=allowed), scoring)
                key += by_key_head(allowed_product(transposed(by_product), these.q, allowed.T), heads)
                value += by_key_head(allowed_product(transposed(dropped), these.grad_output, allowed.T), heads)
                weight += by_key_head(dropped.sum(-2), heads)
    return [(key, value, weight) for key, value, weight in sums]


def _by_pair(rows: RowSlab, slab: KeySlab, scoring: Scoring) -> tuple[Array, Array]:
    """Of all pairs of these rows and keys: what dQ and dK are summed of, scale dS cap', and what dV is, f p."""
    k, v = (_per_query_head(array, rows.q) for array in (slab.k, slab.v))
    scores, slope_of_cap = capped_scores(rows.q, k, distances(rows.positions, slab.positions, rows.q.dtype), scoring)
    shift = np.where(np.isneginf(rows.log_sum_exp), 0, rows.log_sum_exp)
    p = np.where(slab.allowed, np.exp(scores - shift[..., None]), 0)
    factors = drop_factors(p, rows.positions, slab.positions, scoring)
    upstream = factors * (rows.grad_output @ transposed(v)) - rows.delta[..., None]
    by_product = np.where(slab.allowed, rows.q.dtype.type(scoring.scale) * p * upstream * slope_of_cap, 0)
    return by_product, p * factors


def _per_query_head(array: Array, q: Array) -> Array:
    """Keys or values [batch, key_heads, ...] repeated for all query heads, in the dtype of `q`."""
    return np.repeat(array.astype(q.dtype), q.shape[1] // array.shape[1], axis=1)


def by_key_head(array: Array, key_heads: int) -> Array:
    """Sums over the query heads that share a key head: [batch, query_heads, ...] to [batch, key_heads, ...]."""
    total: Array = array.reshape(len(array), key_heads, array.shape[1] // key_heads, *array.shape[2:]).sum(2)
    return total


def distances(rows: Ints, keys: range | Ints, dtype: np.dtype[Any]) -> Array:
    """|i - j| of all pairs, [rows, keys]."""
    distance: Array = np.abs(rows[:, None] - np.asarray(keys, np.int64)).astype(dtype)
    return distance


def capped_scores(q: Array, k: Array, distance: Array, scoring: Scoring) -> tuple[Array, Array]:
    """Scores of all pairs, [batch, query_heads, rows, keys], and the derivative of the cap."""
    scores = q.dtype.type(scoring.scale) * (q @ transposed(k))
    slope_of_cap = np.ones_like(scores)
    if scoring.softcap is not None:
        bent = np.tanh(scores / q.dtype.type(scoring.softcap))
        scores, slope_of_cap = q.dtype.type(scoring.softcap) * bent, 1 - bent * bent
    if scoring.alibi_slopes is not None:
        scores = scores - scoring.alibi_slopes.astype(q.dtype)[:, None, None] * distance
    return scores, slope_of_cap


def allowed_product(weights: Array, array: Array, allowed: Bools) -> Array:
    """The product weights [..., n, m] array [..., m, dim] over allowed pairs: elsewhere 0 * NaN would be NaN."""
    finite = np.asarray(np.isfinite(array).all(axis=(0, 1, 3)))
    total: Array = weights @ np.where(finite[:, None], array, 0)
    for j in np.flatnonzero(~finite):
        total += np.where(allowed[:, j, None], weights[..., j, None] * array[..., j, None, :], 0)
    return total


def transposed(array: Array) -> Array:
    """With its last two axes exchanged."""
    return array.swapaxes(-1, -2)
