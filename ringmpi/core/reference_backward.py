"""The judge of gradients: the backward pass by its plain formula, in any dtype. It shares no code with the kernels.

    p = e^(s - log_sum_exp)                   delta_i = dO_i . O_i - d log_sum_exp_i
    dS = p (dO V^T - delta)                   dV = p^T dO
    dQ = scale (dS cap'(scale Q K^T)) K       dK = scale (dS cap'(scale Q K^T))^T Q
    d sink_h = -sum_i p_sink delta_i          d slope_h = -sum_ij dS_ij |i - j|

With dropout dO V^T, and p in dV, are multiplied by 0 or 1 / (1 - dropout), pair by pair.

Of large inputs, some rows of dQ and some keys of dK and dV: the other side then passes by in slabs, and a row brings
its log_sum_exp and delta along.

A row that sees no key gives and gets 0. NaN and inf go where IEEE arithmetic takes them, but only over pairs that the
mask allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np

from ringmpi.core.reference import Array, Bools, Ints, KeySlab, drop_factors
from ringmpi.core.scoring import Scoring


class DenseGradients(NamedTuple):
    """Gradients of everything that attention depends on; query, key and value with the shapes of theirs.

    sink_logits, alibi_slopes  [query_heads]; those of no sinks are 0, those of no slopes are those of slopes of 0
    """

    query: Array
    key: Array
    value: Array
    sink_logits: Array
    alibi_slopes: Array


class RowOptions(TypedDict, total=False):
    """What rows may have beside q and dO.

    sink_logits       [query_heads]: one more score per row, of value 0
    grad_log_sum_exp  [batch, query_heads, queries]
    output            [batch, query_heads, queries, value_dim]: what a forward pass has kept, perhaps in 16 bit, to
                      take delta from; computed here by default
    """

    sink_logits: Array | None
    grad_log_sum_exp: Array | None
    output: Array | None


def dense_attention_backward(
    grad_output: Array,
    q: Array,
    k: Array,
    v: Array,
    allowed: Bools,
    scoring: Scoring,
    *,
    dtype: np.dtype[Any] | type,
    **options: Unpack[RowOptions],
) -> DenseGradients:
    """Gradients of sum(grad_output output) + sum(grad_log_sum_exp log_sum_exp), computed in `dtype`.

    For small lengths: it holds several arrays of [batch, query_heads, queries, keys].

    Parameters
    ----------
    grad_output : array [batch, query_heads, queries, value_dim]
    q : array [batch, query_heads, queries, head_dim]
    k : array [batch, key_heads, keys, head_dim]
    v : array [batch, key_heads, keys, value_dim]
    allowed : bool [queries, keys]
        True: this row sees this key.
    scoring : Scoring
    dtype : dtype
        Of all arithmetic: the accumulation dtype for a naive result, a wider one for a reference.
    **options
        See `RowOptions`.

    Returns
    -------
    DenseGradients
        In `dtype`.

    Source
    ------
    Dao et al. 2022, FlashAttention, appendix B.2, without tiles.
    """
    wide, key_heads, group = np.dtype(dtype), k.shape[1], q.shape[1] // k.shape[1]
    grad_output, q, k, v = (array.astype(wide) for array in (grad_output, q, k, v))
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    distance = _distances(np.arange(q.shape[2]), range(k.shape[2]), wide)
    with np.errstate(invalid="ignore", over="ignore"):
        scores, slope_of_cap = _scores(q, k, distance, scoring)
        p, p_sink = _probabilities(np.where(allowed, scores, -np.inf), options.get("sink_logits"))
        p = np.where(allowed, p, 0)
        factors = drop_factors(p, np.arange(q.shape[2]), range(k.shape[2]), scoring)
        delta = _delta(grad_output, _product(p * factors, v, allowed), options)
        score_gradient = np.where(allowed, p * (factors * (grad_output @ _transposed(v)) - delta[..., None]), 0)
        by_product = np.where(allowed, wide.type(scoring.scale) * score_gradient * slope_of_cap, 0)
        dropped = _transposed(p * factors)
        by_key = _product(_transposed(by_product), q, allowed.T), _product(dropped, grad_output, allowed.T)
        key, value = (_by_key_head(x, key_heads) for x in by_key)
        return DenseGradients(
            _product(by_product, k, allowed),
            key,
            value,
            sink_logits=-(p_sink * np.where(p_sink == 0, 0, delta)).sum((0, 2)),
            alibi_slopes=-(score_gradient * distance).sum((0, 2, 3)),
        )


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
                total += _product(by_product, _per_query_head(slab.k, these.q), slab.allowed)
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
                key += _by_key_head(_product(_transposed(by_product), these.q, allowed.T), heads)
                value += _by_key_head(_product(_transposed(dropped), these.grad_output, allowed.T), heads)
                weight += _by_key_head(dropped.sum(-2), heads)
    return [(key, value, weight) for key, value, weight in sums]


def _by_pair(rows: RowSlab, slab: KeySlab, scoring: Scoring) -> tuple[Array, Array]:
    """Of all pairs of these rows and keys: what dQ and dK are summed of, scale dS cap', and what dV is, f p."""
    k, v = (_per_query_head(array, rows.q) for array in (slab.k, slab.v))
    scores, slope_of_cap = _scores(rows.q, k, _distances(rows.positions, slab.positions, rows.q.dtype), scoring)
    shift = np.where(np.isneginf(rows.log_sum_exp), 0, rows.log_sum_exp)
    p = np.where(slab.allowed, np.exp(scores - shift[..., None]), 0)
    factors = drop_factors(p, rows.positions, slab.positions, scoring)
    upstream = factors * (rows.grad_output @ _transposed(v)) - rows.delta[..., None]
    by_product = np.where(slab.allowed, rows.q.dtype.type(scoring.scale) * p * upstream * slope_of_cap, 0)
    return by_product, p * factors


def _per_query_head(array: Array, q: Array) -> Array:
    """Keys or values [batch, key_heads, ...] repeated for all query heads, in the dtype of `q`."""
    return np.repeat(array.astype(q.dtype), q.shape[1] // array.shape[1], axis=1)


def _by_key_head(array: Array, key_heads: int) -> Array:
    """Sums over the query heads that share a key head."""
    total: Array = array.reshape(len(array), key_heads, array.shape[1] // key_heads, *array.shape[2:]).sum(2)
    return total


def _distances(rows: Ints, keys: range | Ints, dtype: np.dtype[Any]) -> Array:
    distance: Array = np.abs(rows[:, None] - np.asarray(keys, np.int64)).astype(dtype)
    return distance


def _scores(q: Array, k: Array, distance: Array, scoring: Scoring) -> tuple[Array, Array]:
    """Scores of all pairs, and the derivative of the cap."""
    scores = q.dtype.type(scoring.scale) * (q @ _transposed(k))
    slope_of_cap = np.ones_like(scores)
    if scoring.softcap is not None:
        bent = np.tanh(scores / q.dtype.type(scoring.softcap))
        scores, slope_of_cap = q.dtype.type(scoring.softcap) * bent, 1 - bent * bent
    if scoring.alibi_slopes is not None:
        scores = scores - scoring.alibi_slopes.astype(q.dtype)[:, None, None] * distance
    return scores, slope_of_cap


def _probabilities(scores: Array, sink_logits: Array | None) -> tuple[Array, Array]:
    """Softmax over the keys and the sink: [batch, heads, rows, keys] and [batch, heads, rows]."""
    logits = np.full(scores.shape[1], -np.inf) if sink_logits is None else np.asarray(sink_logits)
    sink = np.broadcast_to(logits.astype(scores.dtype)[:, None], scores.shape[:-1])
    largest = np.maximum(sink, scores.max(-1, initial=-np.inf))
    shift = np.where(np.isneginf(largest), 0, largest)
    weights, sink_weight = np.exp(scores - shift[..., None]), np.exp(sink - shift)
    total = weights.sum(-1) + sink_weight
    total = np.where(total == 0, 1, total)
    return weights / total[..., None], sink_weight / total


def _delta(grad_output: Array, output: Array, options: RowOptions) -> Array:
    kept, upstream = options.get("output"), options.get("grad_log_sum_exp")
    delta: Array = (grad_output * (output if kept is None else kept.astype(output.dtype))).sum(-1)
    return delta if upstream is None else delta - upstream.astype(output.dtype)


def _product(weights: Array, array: Array, allowed: Bools) -> Array:
    """The product weights [..., n, m] array [..., m, dim] over allowed pairs: elsewhere 0 * NaN would be NaN."""
    finite = np.asarray(np.isfinite(array).all(axis=(0, 1, 3)))
    total: Array = weights @ np.where(finite[:, None], array, 0)
    for j in np.flatnonzero(~finite):
        total += np.where(allowed[:, j, None], weights[..., j, None] * array[..., j, None, :], 0)
    return total


def _transposed(array: Array) -> Array:
    return array.swapaxes(-1, -2)
