"""How large the terms of the scores of an input are, head by head: what the rounding of weights is judged by."""

from __future__ import annotations

import numpy as np

from ringmpi.analysis.recompute import WORK_BYTES, Array
from ringmpi.asking.question import Question
from ringmpi.core.tolerance import longest_rows, score_terms
from ringmpi.storage.source import ArraySource


def sizes_of_scores(question: Question) -> Array:
    """`score_terms` of all queries and keys, float64 [batch, query_heads]. Reads both, some positions at a time."""
    return score_terms(_longest(question.q), _longest(question.k), question.problem.scoring.scale)


def _longest(source: ArraySource) -> Array:
    """`longest_rows` of all of it."""
    batch, heads, length, dim = source.full_shape
    step = max(1, WORK_BYTES // (batch * heads * dim * np.dtype(np.float64).itemsize))
    longest: Array = np.zeros((batch, heads))
    for start in range(0, length, step):
        longest = np.maximum(longest, longest_rows(source.rows(np.arange(start, min(start + step, length)))))
    return longest
