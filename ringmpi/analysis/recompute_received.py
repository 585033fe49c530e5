"""What some keys receive, recomputed from the input and from log_sum_exp as it is in the file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ringmpi.analysis.recompute import Array, Ints, Judged, judge_rows, rows_at_once
from ringmpi.asking.question import Question
from ringmpi.core.dtypes import accumulate_dtype, wide_dtype
from ringmpi.core.reference import KeySlab, RowIntervals, allowed_scores, row_intervals
from ringmpi.core.tolerance import finite_scale, weight_scale
from ringmpi.storage.record_layout import RECEIVED
from ringmpi.storage.results import Results

MOST_KEYS = 2048  # as many as a slab of recomputed rows has


def recompute_received(question: Question, results: Results, most: int, terms: Array) -> Judged | None:
    """Recompute what up to `most` keys receive from all rows, judged by /log_sum_exp of the file.

    `terms` are the `sizes_of_scores`.

    Returns
    -------
    Judged or None
        None: it was not recorded, or there is no key.
    """
    stored = results.late.get(RECEIVED)
    if stored is None or not stored.length or most < 1:
        return None
    count = min(most, stored.length, MOST_KEYS)
    keys = np.unique(np.linspace(0, stored.length - 1, count).astype(np.int64))
    k = question.k.rows(keys)
    dtypes = accumulate_dtype(question.problem.dtype), wide_dtype(question.problem.dtype)
    heads = question.problem.heads
    sums = [np.zeros((heads.batch, heads.query_heads, len(keys)), dtype) for dtype in dtypes]
    largest = np.zeros(1)
    height = rows_at_once(question)
    for start in range(0, question.q.length, height):
        rows = np.arange(start, min(start + height, question.q.length))
        slab = KeySlab(keys, _allowed(row_intervals(question.problem.slices, rows), keys), k, k)
        log_sum_exp = results.log_sum_exp.rows(rows)
        for total in sums:
            total += _given(question.q.rows(rows).astype(total.dtype), rows, slab, log_sum_exp, question)
        largest = np.maximum(largest, finite_scale(log_sum_exp))
    naive, reference = sums
    found = stored.rows(keys)
    scale = weight_scale(reference, largest, terms)
    return replace(judge_rows(found, keys, naive, reference, scale), name=RECEIVED)


def _given(q: Array, rows: Ints, slab: KeySlab, log_sum_exp: Array, question: Question) -> Array:
    """Weight that some rows together give to each of some keys, in the dtype of q."""
    with np.errstate(invalid="ignore", over="ignore"):
        scores = allowed_scores(q, rows, slab, question.problem.scoring)
        shift = np.where(np.isneginf(log_sum_exp), 0, log_sum_exp).astype(q.dtype)
        weights = np.exp(scores - shift[..., None])
        given: Array = np.where(slab.allowed, weights, 0).sum(2)
    return given


def _allowed(intervals: RowIntervals, keys: Ints) -> Array:
    """[rows, keys] for keys anywhere."""
    allowed = np.zeros((intervals.rows, len(keys)), np.bool_)
    first, last = np.searchsorted(keys, intervals.start), np.searchsorted(keys, intervals.stop)
    for row, start, stop in zip(intervals.row.tolist(), first.tolist(), last.tolist(), strict=True):
        allowed[row, start:stop] = True
    return allowed
