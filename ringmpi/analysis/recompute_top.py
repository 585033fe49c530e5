"""The top keys of chosen rows, checked: their weights are recomputed, and no other key may have a larger one.

Of keys whose weights are equal to rounding, any order is right.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ringmpi.analysis.recompute import Array, Ints, Judged, joined, judge_rows, key_slabs, rows_at_once
from ringmpi.asking.question import Question
from ringmpi.core.dtypes import accumulate_dtype, wide_dtype
from ringmpi.core.record import NO_KEY
from ringmpi.core.reference import KeySlab, allowed_scores, row_intervals
from ringmpi.core.tolerance import weight_scale
from ringmpi.core.top_keys import without_weights
from ringmpi.storage.record_layout import TOP_KEYS, TOP_ROWS, TOP_WEIGHTS
from ringmpi.storage.results import Results


def recompute_top(question: Question, results: Results, most: int, terms: Array) -> list[Judged]:
    """Recompute up to `most` of the chosen rows; `terms` are the `sizes_of_scores`.

    Returns
    -------
    list of Judged
        Of /record/top_weights: weights of the keys that are named; and of /record/top_keys: the largest weight of a key
        that is not named, judged as if it were the smallest that is, where it is larger. Empty: none are recorded.
    """
    stored = [results.recorded_array(name) for name in (TOP_ROWS, TOP_KEYS, TOP_WEIGHTS)]
    if any(array is None for array in stored) or most < 1:
        return []
    rows, keys, weights = (array.read(slice(None)) for array in stored if array is not None)
    lead = results.output.full_shape[:2]
    keys, weights = (array.reshape(*lead, *array.shape[1:]) for array in (keys, weights))
    chosen = np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(np.int64))
    parts = np.split(chosen, range(rows_at_once(question), len(chosen), rows_at_once(question)))
    judged = [_judge(question, rows[some], keys[:, :, some], weights[:, :, some], terms) for some in parts]
    return [joined(one) for one in zip(*judged, strict=True)]


def _judge(question: Question, rows: Ints, keys: Ints, weights: Array, terms: Array) -> tuple[Judged, Judged]:
    problem = question.problem
    q = question.q.rows(rows)
    both = [
        _Claims(q.astype(dtype), rows, keys, question)
        for dtype in (accumulate_dtype(problem.dtype), wide_dtype(problem.dtype))
    ]
    for slab in key_slabs(question, row_intervals(problem.slices, rows)):
        for one in both:
            one.absorb(slab)
    (naive, _, _), (reference, others, log_sum_exp) = (one.finish(problem.sink_logits) for one in both)
    of_weights = judge_rows(weights, rows, naive, reference, weight_scale(reference, log_sum_exp, terms))
    named_amiss = without_weights(log_sum_exp) & (keys != NO_KEY).any(-1)
    least = np.where(named_amiss[..., None], 0, weights[..., -1:])  # where only NaN is right
    largest = np.maximum(others[..., None], least.astype(others.dtype))
    scale = weight_scale(largest, log_sum_exp, terms)
    of_keys = judge_rows(least, rows, largest.astype(least.dtype), largest, scale)
    return replace(of_weights, name=TOP_WEIGHTS), replace(of_keys, name=TOP_KEYS)


class _Claims:
    """Scores of the keys that are named for some rows, and the largest of the others, slab by slab."""

    def __init__(self, q: Array, rows: Ints, keys: Ints, question: Question) -> None:
        self._q, self._rows, self._keys, self._scoring = q, rows, keys, question.problem.scoring
        self._claimed = np.full(keys.shape, -np.inf, q.dtype)
        self._other = np.full(q.shape[:-1], -np.inf, q.dtype)
        self._scores = [np.full(q.shape[:-1], -np.inf, q.dtype)]  # log_sum_exp of each slab

    def absorb(self, slab: KeySlab) -> None:
        """The next keys, ascending."""
        positions = np.asarray(slab.positions, np.int64)
        if not len(positions):
            return
        with np.errstate(invalid="ignore", over="ignore"):
            s = allowed_scores(self._q, self._rows, slab, self._scoring)
            at = self._keys - positions[0]
            here = (at >= 0) & (at < len(positions))
            place = np.where(here, at, 0)
            self._claimed = np.where(here, np.take_along_axis(s, place, -1), self._claimed)
            self._scores.append(np.logaddexp.reduce(s, axis=-1))
            for nth in range(place.shape[-1]):
                one = place[..., nth : nth + 1]
                kept = np.where(here[..., nth : nth + 1], -np.inf, np.take_along_axis(s, one, -1))
                np.put_along_axis(s, one, kept, -1)
            self._other = np.maximum(self._other, s.max(-1))

    def finish(self, sink_logits: Array | None) -> tuple[Array, Array, Array]:
        """Weights of the named keys [.., count], of the largest other [..]; and log_sum_exp [..]. NaN: unknown."""
        parts = list(self._scores)
        if sink_logits is not None:
            parts.append(np.broadcast_to(np.asarray(sink_logits, self._q.dtype)[:, None], self._other.shape))
        with np.errstate(invalid="ignore", over="ignore"):
            log_sum_exp = np.logaddexp.reduce(np.stack(parts), axis=0)
            log_sum_exp = np.where(without_weights(log_sum_exp), np.nan, log_sum_exp)
            shift = np.where(np.isneginf(log_sum_exp), 0, log_sum_exp)
            return np.exp(self._claimed - shift[..., None]), np.exp(self._other - shift), log_sum_exp
