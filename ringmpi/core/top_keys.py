"""The keys of largest weight of a few chosen rows, by the plain formula in float64; the first of equals.

Each rank finds the top keys among its own, and the top keys of these are those of all. The product q . k is summed
channel after channel in one order for every key, so that equal keys have equal scores, whoever holds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.partial import shift_of
from ringmpi.core.problem import Problem
from ringmpi.core.ranges import expand
from ringmpi.core.record import NO_KEY
from ringmpi.core.scoring import Scoring
from ringmpi.core.slices import Slices
from ringmpi.core.work import ceil_div
from ringmpi.errors import ShapeError

Array = NDArray[Any]
Ints = NDArray[np.int64]

MOST_ROWS = 4096
SCORES_AT_ONCE = 1 << 20  # 8 MiB


@dataclass(frozen=True)
class ChosenRows:
    """Rows whose top keys are asked for.

    positions  int64 [rows]                                  of queries, ascending
    q          [batch, query_heads, rows, head_dim]
    """

    positions: Ints
    q: Array


@dataclass(frozen=True)
class TopKeys:
    """Keys of some rows by descending score, the first of equals.

    keys    int64 [batch, query_heads, rows, count]    positions; -1 where the row sees fewer
    scores  float64, likewise                          natural units; -inf there
    """

    keys: Ints
    scores: NDArray[np.float64]

    def weights(self, log_sum_exp: Array) -> NDArray[np.float64]:
        """E^(score - log_sum_exp [batch, query_heads, rows]); 0 where there is no key, NaN in rows without weights."""
        there = self.keys != NO_KEY
        shift = shift_of(log_sum_exp).astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            weights: NDArray[np.float64] = np.exp(np.where(there, self.scores, -np.inf) - shift[..., None])
        return np.where(without_weights(log_sum_exp)[..., None], np.nan, np.where(there, weights, 0))

    def weighed(self, log_sum_exp: Array) -> Ints:
        """The keys, -1 in rows without weights: among NaN and inf nothing is largest."""
        return np.asarray(np.where(without_weights(log_sum_exp)[..., None], NO_KEY, self.keys))


def without_weights(log_sum_exp: Array) -> NDArray[np.bool_]:
    """Rows that have met a score of NaN or +inf: their weights are NaN, and no key has the largest."""
    return ~(log_sum_exp < np.inf)


def check_rows(positions: Ints, queries: int, count: int) -> None:
    """ShapeError unless these can be chosen, of so many queries."""
    if positions.ndim != 1 or positions.dtype.kind not in "iu" or not 0 < len(positions) <= MOST_ROWS:
        raise ShapeError(
            f"top_rows is {positions.dtype} {positions.shape}; expected a list of 1 to {MOST_ROWS:,} positions of "
            f"queries, whole numbers."
        )
    if positions.min() < 0 or positions.max() >= queries:
        raise ShapeError(
            f"top_rows names positions {positions.min():,} to {positions.max():,}; there are {queries:,} queries, and "
            f"so positions 0 to {queries - 1:,}. Choose from these."
        )
    if (np.diff(positions) <= 0).any():
        raise ShapeError("top_rows is not ascending, or names a position twice; sort it, and name each once.")
    if count < 1:
        raise ShapeError(f"top keys = {count}; it must be at least 1.")


def top_keys_of(problem: Problem, rank: int, chosen: ChosenRows, k: Array, count: int) -> TopKeys:
    """The top keys among those of one rank.

    Parameters
    ----------
    problem : Problem
    rank : int
        Whose keys `k` are.
    chosen : ChosenRows
    k : array [batch, key_heads, keys, head_dim]
    count : int
        How many of each row.
    """
    intervals = _Intervals.of(problem.slices, chosen.positions)
    top = _no_keys(chosen.q.shape[:3], count)
    chunk = max(SCORES_AT_ONCE // max(int(np.prod(chosen.q.shape[:3])), 1), count)
    with np.errstate(invalid="ignore", over="ignore"):
        for local, positions in _chunks(problem.keys.shards[rank], chunk):
            allowed = intervals.allowed(positions)
            if allowed.any():
                scores = _scores(chosen, k[:, :, local], positions, problem.scoring)
                keys = np.where(allowed, np.asarray(positions), NO_KEY)
                found = TopKeys(np.broadcast_to(keys, scores.shape), np.where(allowed, scores, -np.inf))
                top = _top_of([top, found], count)
    return top


def merged_top_keys(parts: Sequence[TopKeys], count: int) -> TopKeys:
    """The top keys among those that several ranks have found."""
    keys = np.concatenate([part.keys for part in parts], axis=-1)
    scores = np.concatenate([part.scores for part in parts], axis=-1)
    order = np.argsort(keys, axis=-1, kind="stable")
    return _top_of([TopKeys(*(np.take_along_axis(array, order, axis=-1) for array in (keys, scores)))], count)


def _top_of(parts: Sequence[TopKeys], count: int) -> TopKeys:
    """The top keys of parts with ascending keys among equals, each part before the next."""
    keys = np.concatenate([part.keys for part in parts], axis=-1)
    scores = np.concatenate([part.scores for part in parts], axis=-1)
    order = np.argsort(-scores, axis=-1, kind="stable")[..., :count]
    return TopKeys(np.take_along_axis(keys, order, axis=-1), np.take_along_axis(scores, order, axis=-1))


def _no_keys(rows: tuple[int, ...], count: int) -> TopKeys:
    return TopKeys(np.full((*rows, count), NO_KEY, np.int64), np.full((*rows, count), -np.inf))


def _chunks(ranges: Sequence[range], longest: int) -> Iterator[tuple[slice, range]]:
    """Local indices and positions of the keys of a rank, some at a time."""
    before = 0
    for part in ranges:
        for start in range(0, len(part), longest):
            positions = part[start : start + longest]
            yield slice(before + start, before + start + len(positions)), positions
        before += len(part)


def _scores(chosen: ChosenRows, k: Array, positions: range, scoring: Scoring) -> NDArray[np.float64]:
    """[batch, query_heads, rows, keys], not masked."""
    batch, heads, rows, _ = chosen.q.shape
    scores = np.empty((batch, heads, rows, len(positions)))
    group = heads // k.shape[1]
    for b, h in np.ndindex(batch, heads):
        q, key = chosen.q[b, h].astype(np.float64), k[b, h // group].astype(np.float64)
        np.einsum("rd,kd->rk", q, key, out=scores[b, h])
    scores *= scoring.scale
    if scoring.softcap is not None:
        scores = scoring.softcap * np.tanh(scores / scoring.softcap)
    if scoring.alibi_slopes is not None:
        distance = np.abs(chosen.positions[:, None] - np.asarray(positions))
        scores -= scoring.alibi_slopes[:, None, None] * distance
    return scores


@dataclass(frozen=True)
class _Intervals:
    """Row `row[n]` of `rows` rows sees the keys start[n] <= j < stop[n]; disjoint."""

    rows: int
    row: Ints
    start: Ints
    stop: Ints

    @classmethod
    def of(cls, slices: Slices, positions: Ints) -> _Intervals:
        """What a resolved mask lets the rows at ascending positions see."""
        q0, q1, k0, k1, low, high = slices.T
        first, last = np.searchsorted(positions, q0), np.searchsorted(positions, q1)
        item, row = expand(first, last)
        start = np.maximum(k0[item], positions[row] + low[item])
        stop = np.minimum(k1[item], positions[row] + high[item] + 1)
        return cls(len(positions), *(column[start < stop] for column in (row, start, stop)))

    def allowed(self, keys: range) -> NDArray[np.bool_]:
        """[rows, keys]."""
        start, stop = (np.clip(ceil_div(b - keys.start, keys.step), 0, len(keys)) for b in (self.start, self.stop))
        edges = np.zeros((self.rows, len(keys) + 1), np.int32)
        np.add.at(edges, (self.row, start), 1)
        np.add.at(edges, (self.row, stop), -1)
        return np.asarray(np.cumsum(edges, axis=1)[:, :-1] > 0)
