"""The judge of a record: what rows say of their weights, by the plain formulas. No code is shared with core/record.py.

    entropy_i = -sum_j p_ij ln p_ij    distance_i = sum_j p_ij |i - j|    sinks_i = sum_(j < n) p_ij

Keys may come in slabs. Each slab is then one draw among its own keys, and the slabs are one draw among themselves, with
weights w: entropy = sum_b w_b entropy_b - sum_b w_b ln w_b, the others are means (Shannon 1948, section 6, on a choice
that is broken down into two). With one slab this is the plain formula. A sink logit is a slab of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ringmpi.core.record import NO_KEY, Record
from ringmpi.core.reference import Array, Ints, KeySlab, allowed_scores
from ringmpi.core.scoring import Scoring


class _Draw(NamedTuple):
    """One slab: largest score, sum of e^(score - it), and quantities among its keys alone. [batch, heads, rows]."""

    m: Array
    l: Array  # noqa: E741
    entropy: Array
    distance: Array
    sinks: Array


class RowsRecord:
    """The record of some rows, from keys that arrive in slabs.

    Parameters
    ----------
    q : array [batch, query_heads, rows, head_dim]
        In the dtype of all arithmetic.
    positions : int64 [rows]
        Global positions of the rows.
    scoring : Scoring
    sinks : int
        First keys whose weight is summed.
    claimed : int64 [batch, query_heads, rows] or None
        Keys that are said to have the largest score: `claimed_score` is the score that they have, -inf for a key that
        the row does not see, and for -1.
    """

    def __init__(self, q: Array, positions: Ints, scoring: Scoring, *, sinks: int, claimed: Ints | None = None) -> None:
        self._q, self._positions, self._scoring, self._sinks, self._claimed = q, positions, scoring, sinks, claimed
        self._draws: list[_Draw] = []
        rows = q.shape[:-1]
        self._top_score, self._top_key = np.full(rows, -np.inf, q.dtype), np.full(rows, NO_KEY, np.int64)
        self.claimed_score = np.full(rows, -np.inf, q.dtype)

    def absorb(self, slab: KeySlab) -> None:
        """The next keys: each once, in ascending order within a slab, slabs in any."""
        keys = np.asarray(slab.positions, np.int64)
        if not len(keys):
            return
        with np.errstate(invalid="ignore", over="ignore"):
            s = allowed_scores(self._q, self._positions, slab, self._scoring)
            self._note_top(s, keys)
            self._note_claimed(s, keys)
            self._draws.append(self._draw(s, keys))

    def finish(self, sink_logits: Array | None = None) -> Record:
        """All of it. sink_logits: [query_heads] or None."""
        draws = list(self._draws)
        if sink_logits is not None:
            logits = np.asarray(sink_logits, self._q.dtype)[:, None]
            m = np.broadcast_to(logits, self._q.shape[:-1])
            zeros = np.zeros(m.shape, m.dtype)
            draws.append(_Draw(m, (~np.isneginf(m)).astype(m.dtype), zeros, zeros, zeros))
        with np.errstate(invalid="ignore", over="ignore"):
            entropy, distance, sinks = _joined(draws, self._q)
        unknown = ~(self._top_score < np.inf)  # NaN, or weights of inf / inf
        top_score, top_key = np.where(unknown, np.nan, self._top_score), np.where(unknown, NO_KEY, self._top_key)
        return Record(entropy, distance, top_score, top_key, sinks)

    def _draw(self, s: Array, keys: Ints) -> _Draw:
        m = s.max(-1)
        e = np.exp(s - np.where(np.isneginf(m), 0, m)[..., None])
        total = e.sum(-1)
        p = e / np.where(total == 0, 1, total)[..., None]
        distance = np.abs(self._positions[:, None] - keys).astype(p.dtype)
        plogp = p * np.log(np.where(p == 0, 1, p))
        return _Draw(m, total, -plogp.sum(-1), (p * distance).sum(-1), p[..., keys < self._sinks].sum(-1))

    def _note_top(self, s: Array, keys: Ints) -> None:
        score, key = s.max(-1), keys[s.argmax(-1)]
        first = (score == self._top_score) & (key < self._top_key)
        better = (score > self._top_score) | np.isnan(score) | (first & ~np.isneginf(score))
        self._top_score, self._top_key = np.where(better, score, self._top_score), np.where(better, key, self._top_key)

    def _note_claimed(self, s: Array, keys: Ints) -> None:
        if self._claimed is None:
            return
        at = np.searchsorted(keys, self._claimed)
        here = at < len(keys)
        at = np.where(here, at, 0)
        here &= keys[at] == self._claimed
        score = np.take_along_axis(s, at[..., None], -1)[..., 0]
        self.claimed_score = np.where(here, score, self.claimed_score)


def _joined(draws: list[_Draw], q: Array) -> tuple[Array, Array, Array]:
    """Entropy, distance and weight on sinks over all draws; 0 where there is none."""
    if not draws:
        return tuple(np.zeros(q.shape[:-1], q.dtype) for _ in range(3))  # type: ignore[return-value]
    m, sums, entropy, distance, sinks = (np.stack(parts) for parts in zip(*draws, strict=True))
    largest = m.max(0)
    delta = m - np.where(np.isneginf(largest), 0, largest)
    share = sums * np.exp(delta)
    total = share.sum(0)
    w = share / np.where(total == 0, 1, total)
    logs = np.where(w == 0, 0, delta + np.log(np.where(sums == 0, 1, sums)) - np.log(np.where(total == 0, 1, total)))
    return (w * entropy).sum(0) - (w * logs).sum(0), (w * distance).sum(0), (w * sinks).sum(0)
