"""A backend that is slow and plain: row by row forward and for dQ, key by key for dK and dV.

It keeps the promise of `Backend.reproducible` by construction: no number of one row or key is computed with another's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.base import Poll
from ringmpi.backends.memory import HOST, Memory
from ringmpi.core import work as columns
from ringmpi.core.dropout import keep_four
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.gradients import Gradients, Saved
from ringmpi.core.partial import Partial, empty_partial
from ringmpi.core.scoring import Scoring
from ringmpi.core.shapes import HeadShape
from ringmpi.core.work import Work

Array = NDArray[Any]


class Sight(NamedTuple):
    """One row and the keys that it sees, or one key and the rows that see it, of one head.

    place          (batch, query head)
    rows, keys     local indices: the one, and a slice of the others
    i, j           positions
    """

    place: tuple[int, int]
    rows: Any
    keys: Any
    i: Any
    j: Any


def open_rowwise(*, threads, local_rank):
    return RowwiseBackend(threads=threads)


class RowwiseBackend:
    """One row at a time."""

    name: ClassVar[str] = "rowwise"
    reproducible: ClassVar[bool] = True
    records: ClassVar[bool] = False
    arithmetic: ClassVar[str] = "NumPy"
    memory: ClassVar[Memory] = HOST

    def __init__(self, *, threads: int = 1) -> None:
        self.threads = threads

    def call_budget(self, heads: HeadShape, dtype: np.dtype) -> int:
        """Small and odd, so that much is cut."""
        return 37

    def attend(
        self,
        q: Any,
        k: Any,
        v: Any,
        work: Work,
        scoring: Scoring,
        *,
        finite: bool = True,
        into: Partial | None = None,
        poll: Poll | None = None,
    ) -> tuple[Partial, int]:
        """Fold the keys that a row sees, item by item."""
        wide = accumulate_dtype(q.dtype)
        partial = into or empty_partial(*q.shape[:3], v.shape[-1], wide)
        pairs, group = 0, q.shape[1] // k.shape[1]
        for (b, h), row, keys, i, j in _sights(work, q.shape[:2], by_row=True):
            score = _scores(q[b, h, row], k[b, h // group, keys], wide, scoring, h, np.abs(i - j))[0]
            before = partial.row_max[b, h, row]
            largest = np.maximum(before, score.max())
            shift = np.where(np.isneginf(largest), 0, largest).astype(wide)
            weights, shrink = np.exp(score - shift), np.exp(before - shift)
            partial.row_max[b, h, row] = largest
            partial.row_sum[b, h, row] = shrink * partial.row_sum[b, h, row] + weights.sum()
            weighted = (weights * _kept(scoring, b, h, i, j))[:, None] * v[b, h // group, keys].astype(wide)
            partial.weighted_sum[b, h, row] = shrink * partial.weighted_sum[b, h, row] + weighted.sum(0)
            pairs += len(score)
        return partial, pairs

    def attend_backward(
        self,
        q: Any,
        k: Any,
        v: Any,
        saved: Saved,
        work: Work,
        scoring: Scoring,
        *,
        into: Gradients,
        finite: bool = True,
        poll: Poll | None = None,
    ) -> int:
        """The formulas of core/gradients.py, for a row over its keys and for a key over its rows."""
        group, pairs = q.shape[1] // k.shape[1], 0
        for (b, h), row, keys, i, j in _sights(work, q.shape[:2], by_row=True):
            one = _Pairs(q[b, h, [row]], k[b, h // group, keys], v[b, h // group, keys], saved, (b, h, [row]))
            _, gradient, distance = one.gradients(scoring, np.abs(i - j), _kept(scoring, b, h, i, j))
            into.slope[h] -= (gradient * distance).sum()
            pairs += len(j)
            if into.query is not None:
                by_key = (one.by_product(gradient)[:, None] * one.k).sum(0)
                into.query[b, h, row] += into.query.dtype.type(scoring.scale) * by_key
        if into.key is not None:
            for (b, h), rows, key, i, j in _sights(work, q.shape[:2], by_row=False):
                one = _Pairs(q[b, h, rows], k[b, h // group, [key]], v[b, h // group, [key]], saved, (b, h, rows))
                kept = _kept(scoring, b, h, i, j)
                weights, gradient, _ = one.gradients(scoring, np.abs(i - j), kept)
                by_row = (one.by_product(gradient)[:, None] * one.q).sum(0)
                into.key[b, h // group, key] += into.key.dtype.type(scoring.scale) * by_row
                into.value[b, h // group, key] += ((weights * kept)[:, None] * one.grad_output).sum(0)
        return pairs


class _Pairs:
    """One row with some keys, or some rows with one key, in the accumulation dtype."""

    def __init__(self, q: Array, k: Array, v: Array, saved: Saved, where: tuple[Any, ...]) -> None:
        wide, self.head = accumulate_dtype(q.dtype), where[1]
        self.q, self.k, self.v, self.grad_output = (x.astype(wide) for x in (q, k, v, saved.grad_output[where]))
        self.log_sum_exp, self.delta, self.wide = saved.log_sum_exp[where], saved.delta[where], wide

    def gradients(self, scoring: Scoring, distance: Array, kept: Array) -> tuple[Array, Array, Array]:
        """P, dS and the distance of each pair."""
        score, self.slope_of_cap = _scores(self.q, self.k, self.wide, scoring, self.head, distance)
        weights = np.exp(score - self.log_sum_exp)
        gradient = weights * (kept * (self.grad_output * self.v).sum(-1) - self.delta)
        return weights, gradient, distance.astype(self.wide)

    def by_product(self, gradient: Array) -> Array:
        """Of q . k: dS through the cap."""
        return gradient * self.slope_of_cap


def _scores(q: Array, k: Array, wide: np.dtype, scoring: Scoring, head: int, distance: Array) -> tuple[Array, Array]:
    """Scores of pairs (one side is one row or key), and the derivative of the cap."""
    score = wide.type(scoring.scale) * (q.astype(wide) * k.astype(wide)).sum(-1)
    slope_of_cap = np.ones_like(score)
    if scoring.softcap is not None:
        bent = np.tanh(score / wide.type(scoring.softcap))
        score, slope_of_cap = wide.type(scoring.softcap) * bent, 1 - bent * bent
    if scoring.alibi_slopes is not None:
        score = score - wide.type(scoring.alibi_slopes[head]) * distance.astype(wide)
    return score, slope_of_cap


def _kept(scoring: Scoring, batch: int, head: int, i: Array, j: Array) -> Any:
    """0 for a dropped pair, else 1 / (1 - dropout)."""
    if not scoring.dropout:
        return np.float32(1)
    four = np.stack(keep_four(scoring, *np.broadcast_arrays(i, j // 4, head, batch)))
    kept = np.take_along_axis(four, np.broadcast_to(j % 4, four.shape[1:])[None], 0)[0]
    return np.where(kept, np.float32(1 / (1 - scoring.dropout)), np.float32(0))


def _sights(work: Work, heads: tuple[int, int], *, by_row: bool) -> Iterator[Sight]:
    """Item by item: each row with its keys, or each key with its rows; each for all heads."""
    for item in work.tolist():
        own, other = (columns.ROW_START, columns.KEY_START) if by_row else (columns.KEY_START, columns.ROW_START)
        for one in range(item[own], item[own + 1]):
            low, high = (item[columns.LOW], item[columns.HIGH]) if by_row else (-item[columns.HIGH], -item[columns.LOW])
            origins = (
                (item[columns.ROW_ORIGIN], item[columns.ROW_STRIDE]),
                (item[columns.KEY_ORIGIN], item[columns.KEY_STRIDE]),
            )
            (origin, stride), (far, far_stride) = origins if by_row else origins[::-1]
            at = origin + stride * one
            start = max(item[other], -(-(at + low - far) // far_stride))
            stop = min(item[other + 1], (at + high - far) // far_stride + 1)
            if start < stop:
                others = far + far_stride * np.arange(start, stop)
                for place in np.ndindex(*heads):
                    some, mine = slice(start, stop), np.array([at])
                    yield Sight(place, one, some, mine, others) if by_row else Sight(place, some, one, others, mine)
