"""Some query blocks of the attention map, recomputed from the input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ringmpi.analysis.recompute import Array, Ints, Judged, judge_rows, key_slabs, rows_at_once
from ringmpi.asking.question import Question
from ringmpi.core.attention_map import block_count
from ringmpi.core.dtypes import accumulate_dtype, wide_dtype
from ringmpi.core.reference import RowIntervals, row_intervals
from ringmpi.core.reference_map import BlockWeights
from ringmpi.core.tolerance import finite_scale, weight_scale
from ringmpi.storage.record_layout import BLOCK_ATTRIBUTE, RECORDED_MAP
from ringmpi.storage.results import Results


def recompute_map(question: Question, results: Results, positions: Ints, terms: Array) -> Judged | None:
    """Recompute the query blocks of the map in which some of `positions` lie, about as many rows as there are of these.

    Parameters
    ----------
    question : Question
    results : Results
    positions : int64 [rows]
        Ascending; at least one.
    terms : array [batch, query_heads]
        `sizes_of_scores`.

    Returns
    -------
    Judged or None
        Its rows are query blocks, each by its first position. None: the run has recorded no map, or one of no keys.
    """
    stored, block = results.late.get(RECORDED_MAP), block_of(results)
    if stored is None or not question.k.length:
        return None
    touched = np.unique(positions // block)
    every = len(positions) == question.q.length
    count = len(touched) if every else max(len(positions) // block, 1)
    blocks = touched[np.unique(np.linspace(0, len(touched) - 1, min(count, len(touched))).astype(np.int64))]
    found = stored.rows(blocks)
    naive, reference, largest = zip(*(_query_block(question, b, block) for b in blocks.tolist()), strict=True)
    near, exact = np.stack(naive, axis=2), np.stack(reference, axis=2)
    scale = weight_scale(exact, np.array(largest), terms)
    return replace(judge_rows(found, blocks * block, near, exact, scale), name=RECORDED_MAP)


def rows_that_see(intervals: RowIntervals) -> Array:
    """Which rows see a key."""
    return np.bincount(intervals.row, minlength=intervals.rows) > 0


def _query_block(question: Question, nth: int, block: int) -> tuple[Array, Array, float]:
    """One row of the map [batch, heads, key blocks], naive and wide; and the largest |log_sum_exp| of its rows."""
    problem = question.problem
    dtypes = accumulate_dtype(problem.dtype), wide_dtype(problem.dtype)
    positions = np.arange(nth * block, min((nth + 1) * block, question.q.length))
    shape = *heads_of(question), block_count(question.k.length, block)
    sums, rows, largest = [np.zeros(shape, dtype) for dtype in dtypes], 0, 0.0
    height = rows_at_once(question)
    for some in np.split(positions, range(height, len(positions), height)):
        intervals = row_intervals(problem.slices, some)
        rows += int(rows_that_see(intervals).sum())
        q = question.q.rows(some)
        both = [
            BlockWeights(q.astype(dtype), some, problem.scoring, block=block, keys=question.k.length)
            for dtype in dtypes
        ]
        for slab in key_slabs(question, intervals):
            for one in both:
                one.absorb(slab)
        for total, one in zip(sums, both, strict=True):
            weights, log_sum_exp = one.finish(problem.sink_logits)
            total += weights.sum(2)
        largest = max(largest, finite_scale(log_sum_exp))
    naive, reference = (total / max(rows, 1) for total in sums)
    return naive.astype(dtypes[0]), reference, largest


def heads_of(question: Question) -> tuple[int, int]:
    """Batch and query heads."""
    return question.problem.heads.batch, question.problem.heads.query_heads


def block_of(results: Results) -> int:
    """Positions of a block of the map, as the file says; 1 where there is no map."""
    stored = results.recorded_array(RECORDED_MAP)
    return 1 if stored is None else stored.number(BLOCK_ATTRIBUTE) or 1
