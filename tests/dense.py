"""The judges of small arrays: gradients and weights of all pairs at once, by the formulas of those in ringmpi/core.

Beside what core/reference_backward.py has, with p_sink the probability of the sink:

    d sink_h = -sum_i p_sink delta_i          d slope_h = -sum_ij dS_ij |i - j|
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np

from ringmpi.core.reference import Array, Bools, KeySlab, drop_factors
from ringmpi.core.reference_backward import allowed_product, by_key_head, capped_scores, distances, transposed
from ringmpi.core.reference_map import BlockWeights
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

    sink_logits       [query_heads]: one more score a row, of value 0
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
    distance = distances(np.arange(q.shape[2]), range(k.shape[2]), wide)
    with np.errstate(invalid="ignore", over="ignore"):
        scores, slope_of_cap = capped_scores(q, k, distance, scoring)
        p, p_sink = _probabilities(np.where(allowed, scores, -np.inf), options.get("sink_logits"))
        p = np.where(allowed, p, 0)
        factors = drop_factors(p, np.arange(q.shape[2]), range(k.shape[2]), scoring)
        delta = _delta(grad_output, allowed_product(p * factors, v, allowed), options)
        score_gradient = np.where(allowed, p * (factors * (grad_output @ transposed(v)) - delta[..., None]), 0)
        by_product = np.where(allowed, wide.type(scoring.scale) * score_gradient * slope_of_cap, 0)
        dropped = transposed(p * factors)
        by_key = allowed_product(transposed(by_product), q, allowed.T), allowed_product(dropped, grad_output, allowed.T)
        key, value = (by_key_head(x, key_heads) for x in by_key)
        return DenseGradients(
            allowed_product(by_product, k, allowed),
            key,
            value,
            sink_logits=-(p_sink * np.where(p_sink == 0, 0, delta)).sum((0, 2)),
            alibi_slopes=-(score_gradient * distance).sum((0, 2, 3)),
        )


def dense_weights(
    q: Array,
    k: Array,
    allowed: Array,
    scoring: Scoring,
    *,
    sink_logits: Array | None = None,
    dtype: np.dtype | type,
) -> tuple[Array, Array]:
    """The p_ij of whole arrays [batch, heads, length, head_dim], computed in `dtype`; and log_sum_exp."""
    rows = BlockWeights(q.astype(dtype), np.arange(q.shape[2]), scoring, block=1, keys=k.shape[2])
    rows.absorb(KeySlab(range(k.shape[2]), allowed, k, k))
    return rows.finish(sink_logits)


def dense_map(weights: Array, allowed: Array, block: int) -> Array:
    """Weights [batch, query_heads, queries, key blocks], averaged over the rows of each query block that see a key."""
    seen = np.asarray(allowed.any(-1))
    starts = range(0, weights.shape[2], block)
    rows = [np.flatnonzero(seen[start : start + block]) + start for start in starts]
    means = [weights[:, :, some].sum(2) / max(len(some), 1) for some in rows]
    return np.stack(means, 2) if means else weights[:, :, :0]


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
