"""The judge of maps: weights that rows give to blocks of keys, by the plain formula. No code is shared with the passes.

    weight_ib = sum_(j in b) p_ij        p_ij = e^(s_ij) / (sum_j e^(s_ij) + e^(sink logit))

Keys may come in slabs; with one slab this is the plain formula. With blocks of one position the weights are the p_ij.
"""

from __future__ import annotations

import numpy as np

from ringmpi.core.reference import Array, Ints, KeySlab, allowed_scores
from ringmpi.core.scoring import Scoring


class BlockWeights:
    """What some rows give to all blocks of keys.

    Parameters
    ----------
    q : array [batch, query_heads, rows, head_dim]
        In the dtype of all arithmetic.
    positions : int64 [rows]
        Global positions of the rows.
    scoring : Scoring
        Its dropout has no effect.
    block : int
        Positions of a block.
    keys : int
        Length of the sequence of keys.
    """

    def __init__(self, q: Array, positions: Ints, scoring: Scoring, *, block: int, keys: int) -> None:
        self._q, self._positions, self._scoring, self._block = q, positions, scoring, block
        blocks = -(-keys // block)
        self._largest = np.full(q.shape[:-1], -np.inf, q.dtype)
        self._sums = np.zeros((*q.shape[:-1], blocks), q.dtype)
        self._sees = np.zeros((len(positions), blocks), np.bool_)

    def absorb(self, slab: KeySlab) -> None:
        """The next keys: each once, in any order."""
        with np.errstate(invalid="ignore", over="ignore"):
            s = allowed_scores(self._q, self._positions, slab, self._scoring)
            self._raise_to(s.max(-1, initial=-np.inf))
            weights = np.exp(s - _finite(self._largest)[..., None])
            of_key = np.asarray(slab.positions, np.int64) // self._block
            for block in np.unique(of_key).tolist():
                inside = of_key == block
                self._sums[..., block] += np.where(slab.allowed[:, inside], weights[..., inside], 0).sum(-1)
                self._sees[:, block] |= slab.allowed[:, inside].any(-1)

    def finish(self, sink_logits: Array | None = None) -> tuple[Array, Array]:
        """All of it, once.

        Parameters
        ----------
        sink_logits : array [query_heads] or None

        Returns
        -------
        weights : array [batch, query_heads, rows, blocks]
        log_sum_exp : array [batch, query_heads, rows]
            -inf where a row sees no key.
        """
        with np.errstate(invalid="ignore", over="ignore"):
            total = np.zeros_like(self._largest)
            if sink_logits is not None:
                logits = np.broadcast_to(np.asarray(sink_logits, self._q.dtype)[:, None], self._largest.shape)
                self._raise_to(logits)
                total += np.exp(logits - _finite(self._largest))
            total += self._sums.sum(-1)
            weights = self._sums / np.where(total == 0, 1, total)[..., None]
            log_sum_exp = np.where(total == 0, -np.inf, self._largest + np.log(np.where(total == 0, 1, total)))
            return np.where(self._sees, weights, 0), log_sum_exp

    def _raise_to(self, scores: Array) -> None:
        """Sums relative to the largest score so far, `scores` included."""
        before, self._largest = self._largest, np.maximum(self._largest, scores)
        self._sums *= np.exp(before - _finite(self._largest))[..., None]


def _finite(scores: Array) -> Array:
    """0 in place of -inf: -inf - -inf would be NaN."""
    return np.where(np.isneginf(scores), 0, scores)
