"""The judge: attention by its plain formula, in any dtype. It shares no code with the kernels or with core/partial.py.

    output_i = sum_j e^(s_ij - m_i) v_j / l_i     l_i = sum_j e^(s_ij - m_i)     log_sum_exp_i = m_i + ln l_i

j runs over the keys that row i sees, m_i is the largest of their scores. With dropout each term of output_i, but not of
l_i, is multiplied by 0 or 1 / (1 - dropout) (core/dropout.py). Keys may come in slabs, so a few rows of an input of
millions of keys are recomputed in little memory; with one slab this is the plain formula, operation by operation. A row
that sees no key has output 0 and log_sum_exp -inf. NaN and inf go where IEEE arithmetic takes them, but only from keys
that a row sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.dropout import keep_four
from ringmpi.core.scoring import Scoring

Array = NDArray[Any]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Attention = tuple[Array, Array]

SCORE_BYTES = 64 << 20


@dataclass(frozen=True)
class KeySlab:
    """Some keys, their values, and which rows see them.

    positions  range or int64 [keys]                global positions of the keys
    allowed    [rows, keys] bool                    True: this row sees this key
    k          [batch, key_heads, keys, head_dim]
    v          [batch, key_heads, keys, value_dim]
    """

    positions: range | Ints
    allowed: Bools
    k: Array
    v: Array


@dataclass(frozen=True)
class RowIntervals:
    """Which keys some rows see: row `row[n]` (an index among `rows` rows) sees start[n] <= key < stop[n]."""

    rows: int
    row: Ints
    start: Ints
    stop: Ints

    def allowed(self, keys: range) -> Bools:
        """[rows, keys] bool for consecutive `keys`: +1 where an interval starts, -1 where it stops, summed up."""
        start, stop = (np.clip(bound - keys.start, 0, len(keys)) for bound in (self.start, self.stop))
        edges = np.zeros((self.rows, len(keys) + 1), np.int32)
        np.add.at(edges, (self.row, start), 1)
        np.add.at(edges, (self.row, stop), -1)
        return np.cumsum(edges, axis=1)[:, :-1] > 0


def row_intervals(slices: Ints, positions: Ints) -> RowIntervals:
    """The keys that the query rows at ascending `positions` see under a resolved mask.

    Parameters
    ----------
    slices : int64 [n, 6]
        Disjoint: q0 q1 k0 k1 low high (core/slices.py).
    positions : int64 [rows]
        Ascending global positions of queries.
    """
    q0, q1, k0, k1, low, high = slices.T
    first, last = np.searchsorted(positions, q0), np.searchsorted(positions, q1)
    counts = last - first
    item = np.repeat(np.arange(len(slices)), counts)
    row = np.arange(len(item)) - np.repeat(np.cumsum(counts) - counts - first, counts)
    start = np.maximum(k0[item], positions[row] + low[item])
    stop = np.minimum(k1[item], positions[row] + high[item] + 1)
    seen = start < stop
    return RowIntervals(len(positions), row[seen], start[seen], stop[seen])


def dense_attention(
    q: Array,
    k: Array,
    v: Array,
    allowed: Bools,
    scoring: Scoring,
    *,
    sink_logits: Array | None = None,
    dtype: np.dtype[Any] | type,
) -> Attention:
    """Attention of all rows to all their keys by the plain formula, computed in `dtype`.

    Rows are taken a block at a time, so that scores need about 64 MiB whatever the lengths.

    Parameters
    ----------
    q : array [batch, query_heads, queries, head_dim]
    k : array [batch, key_heads, keys, head_dim]
    v : array [batch, key_heads, keys, value_dim]
    allowed : bool [queries, keys]
        True: this row sees this key.
    scoring : Scoring
    sink_logits : array [query_heads] or None
        One more score per row, of value 0, in the normaliser. -inf: no sink.
    dtype : dtype
        Of all arithmetic: the accumulation dtype for a naive result, a wider one for a reference.

    Returns
    -------
    output : array [batch, query_heads, queries, value_dim], `dtype`
    log_sum_exp : array [batch, query_heads, queries], `dtype`, natural logarithm

    Source
    ------
    Vaswani et al. 2017, eq. 1.
    """
    wanted = np.dtype(dtype)
    batch, heads, queries, _ = q.shape
    keys = range(k.shape[-2])
    height = max(1, SCORE_BYTES // (batch * heads * max(1, len(keys)) * wanted.itemsize))
    output = np.empty((batch, heads, queries, v.shape[-1]), wanted)
    log_sum_exp = np.empty((batch, heads, queries), wanted)
    for start in range(0, queries, height):
        rows = slice(start, start + height)
        slab = KeySlab(keys, allowed[rows], k, v)
        positions = np.arange(queries)[rows]
        [(output[:, :, rows], log_sum_exp[:, :, rows])] = attend_rows(
            q[:, :, rows], positions, [slab], scoring, sink_logits=sink_logits, dtypes=[wanted]
        )
    return output, log_sum_exp


def attend_rows(
    q: Array,
    positions: Ints,
    slabs: Iterable[KeySlab],
    scoring: Scoring,
    *,
    sink_logits: Array | None = None,
    dtypes: Sequence[np.dtype[Any]],
) -> list[Attention]:
    """Attention of some rows to keys that arrive in slabs, computed once in each of `dtypes`.

    Parameters
    ----------
    q : array [batch, query_heads, rows, head_dim]
    positions : int64 [rows]
        Global positions of the rows.
    slabs : iterable of KeySlab
        Each key once, in any order. At least one slab: it says value_dim, and may hold no keys.
    scoring : Scoring
    sink_logits : array [query_heads] or None
    dtypes : sequence of dtype

    Returns
    -------
    list of (output, log_sum_exp)
        One pair a dtype: [batch, query_heads, rows, value_dim] and [batch, query_heads, rows].

    Source
    ------
    Online form: Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", section 3.
    """
    queries = [q.astype(dtype) for dtype in dtypes]
    sums = [_no_keys(rows, sink_logits) for rows in queries]
    with np.errstate(invalid="ignore", over="ignore"):
        for slab in slabs:
            sums = [_absorb(s, rows, positions, slab, scoring) for s, rows in zip(sums, queries, strict=True)]
        return [_normalise(s) for s in sums]


def drop_factors(weights: Array, positions: Ints, keys: range | Ints, scoring: Scoring) -> Array:
    """What dropout multiplies `weights` with: 0 or 1 / (1 - dropout), and 1 for all where nothing is dropped.

    Parameters
    ----------
    weights : array [batch, query_heads, rows, keys]
        Gives shape and dtype.
    positions : int64 [rows]
    keys : range or int64 [keys]
        Global positions, like `positions`.
    scoring : Scoring
    """
    if not scoring.dropout:
        return np.ones((), weights.dtype)
    batch, heads = np.arange(weights.shape[0])[:, None, None, None], np.arange(weights.shape[1])[:, None, None]
    columns = np.asarray(keys, np.int64)
    quads, quad = np.unique(columns >> 2, return_inverse=True)
    kept = np.stack(keep_four(scoring, positions[:, None], quads, heads, batch), -1)[..., quad, columns & 3]
    factors: Array = kept / (1 - weights.dtype.type(scoring.dropout))
    return factors


class _Sums(NamedTuple):
    """m, l [batch, query_heads, rows] and the unnormalised output o [..., value_dim] of the keys so far."""

    m: Array
    l: Array  # noqa: E741
    o: Array


def _no_keys(q: Array, sink_logits: Array | None) -> _Sums:
    """The sums before any key: a sink is a score whose value is 0."""
    logits = -np.inf if sink_logits is None else np.asarray(sink_logits, q.dtype)[:, None]
    m = np.broadcast_to(np.asarray(logits, q.dtype), q.shape[:-1])
    return _Sums(m, (~np.isneginf(m)).astype(q.dtype), np.zeros((*q.shape[:-1], 1), q.dtype))


def _absorb(sums: _Sums, q: Array, positions: Ints, slab: KeySlab, scoring: Scoring) -> _Sums:
    s = allowed_scores(q, positions, slab, scoring)
    m = np.maximum(sums.m, s.max(-1, initial=-np.inf))
    shift = np.where(np.isneginf(m), 0, m)  # -inf - -inf would be NaN
    p, alpha = np.exp(s - shift[..., None]), np.exp(sums.m - shift)
    dropped = p * drop_factors(p, positions, slab.positions, scoring)
    o = alpha[..., None] * sums.o + _weighted(dropped, slab.v.astype(q.dtype), slab.allowed)
    return _Sums(m, alpha * sums.l + p.sum(-1), o)


def allowed_scores(q: Array, positions: Ints, slab: KeySlab, scoring: Scoring) -> Array:
    """Scores [batch, query_heads, rows, keys] in the dtype of q; -inf where a row does not see a key."""
    scores: Array = np.where(slab.allowed, _scores(q, positions, slab, scoring), -np.inf)
    return scores


def _scores(q: Array, positions: Ints, slab: KeySlab, scoring: Scoring) -> Array:
    s = scoring.scale * _per_key_head(q, slab.k.astype(q.dtype).swapaxes(-1, -2))
    if scoring.softcap is not None:
        s = scoring.softcap * np.tanh(s / scoring.softcap)
    if scoring.alibi_slopes is not None:
        distance = np.abs(positions[:, None] - np.asarray(slab.positions)).astype(q.dtype)
        s = s - scoring.alibi_slopes.astype(q.dtype)[:, None, None] * distance
    return s


def _weighted(p: Array, v: Array, allowed: Bools) -> Array:
    """The product p v, to which a key outside a row's own adds nothing: p is 0 there, but 0 * NaN is NaN."""
    finite = np.asarray(np.isfinite(v).all(axis=(0, 1, 3)))
    total = _per_key_head(p, np.where(finite[:, None], v, 0))
    for j in np.flatnonzero(~finite):
        product = _per_key_head(p[..., j, None], v[..., j, None, :])
        total += np.where(allowed[:, j, None], product, 0)
    return total


def _per_key_head(a: Array, b: Array) -> Array:
    """The product a b, where query heads [batch, query_heads, rows, n] share b [batch, key_heads, n, m] in groups."""
    batch, heads, rows, n = a.shape
    product = a.reshape(batch, b.shape[1], heads // b.shape[1] * rows, n) @ b
    return product.reshape(batch, heads, rows, b.shape[-1])


def _normalise(sums: _Sums) -> Attention:
    divisor = np.where(sums.l == 0, 1, sums.l)
    shift = np.where(np.isneginf(sums.m), 0, sums.m)
    return sums.o / divisor[..., None], np.where(np.isneginf(sums.m), sums.m, shift + np.log(divisor))
