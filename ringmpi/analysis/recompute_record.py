"""What an output recorded of its rows, recomputed for some of them from the input and judged.

A top key is judged by its score: of keys whose scores are equal to rounding, a kernel may find any to be the largest.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ringmpi.analysis.recompute import Array, Ints, Judged, joined, judge_array, judge_rows, key_slabs, rows_at_once
from ringmpi.asking.question import Question
from ringmpi.core.dtypes import accumulate_dtype, wide_dtype
from ringmpi.core.record import NO_KEY, QUANTITIES, Record
from ringmpi.core.reference import row_intervals
from ringmpi.core.reference_record import RowsRecord
from ringmpi.core.tolerance import record_scales
from ringmpi.storage.record_layout import RECORD, TOP_KEY
from ringmpi.storage.results import Results


def recompute_record(question: Question, results: Results, positions: Ints) -> list[Judged]:
    """Recompute the record of the rows at `positions`, and judge what the file has of them.

    Parameters
    ----------
    question : Question
    results : Results
        Of a run that has recorded rows.
    positions : int64 [rows]
        Ascending; at least one.

    Returns
    -------
    list of Judged
        One for each dataset of `RECORDED_ROWS`.
    """
    blocks = np.array_split(positions, -(-len(positions) // rows_at_once(question)))
    judged = [_judge_block(question, results, block) for block in blocks]
    return [joined(one_array) for one_array in zip(*judged, strict=True)]


def _judge_block(question: Question, results: Results, rows: Ints) -> list[Judged]:
    claimed = results.recorded_rows[TOP_KEY].rows(rows)
    (naive, _), (reference, scores) = _recomputed(question, rows, claimed)
    scales = record_scales(reference)
    judged = []
    for name in QUANTITIES:
        source = results.recorded_rows[f"{RECORD}/{name}"]
        if source.name != TOP_KEY:
            judged.append(judge_array(source, rows, getattr(naive, name), getattr(reference, name), scales[name]))
            continue
        found = _score_of_claim(claimed, scores, reference).astype(naive.top_score.dtype)
        one = judge_rows(found, rows, naive.top_score, reference.top_score, scales[name])
        judged.append(replace(one, name=source.name))
    return judged


def _recomputed(question: Question, rows: Ints, claimed: Ints) -> list[tuple[Record, Array]]:
    """By the plain formulas, in the dtype of accumulation and in a wider one; and the scores of the claimed keys."""
    problem = question.problem
    q, sinks = question.q.rows(rows), 1 if problem.record is None else problem.record.sinks
    both = [
        RowsRecord(q.astype(dtype), rows, problem.scoring, sinks=sinks, claimed=claimed)
        for dtype in (accumulate_dtype(problem.dtype), wide_dtype(problem.dtype))
    ]
    for slab in key_slabs(question, row_intervals(problem.slices, rows)):
        for one in both:
            one.absorb(slab)
    return [(one.finish(problem.sink_logits), one.claimed_score) for one in both]


def _score_of_claim(claimed: Ints, scores: Array, reference: Record) -> Array:
    """The scores of the claimed keys; "no key" is right where there is none, and a key there is not."""
    claims_none, is_none = claimed == NO_KEY, reference.top_key == NO_KEY
    found = np.where(claims_none & is_none, reference.top_score, scores)
    amiss = np.where(np.isnan(reference.top_score), 0, np.nan)  # what the reference is not
    return np.where(claims_none != is_none, amiss.astype(scores.dtype), found)
