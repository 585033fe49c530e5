"""Attention by its plain formula over a boolean mask, and the judgement of a Partial by it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.dtypes import accumulate_dtype, wide_dtype
from ringmpi.core.partial import Partial, finalize
from ringmpi.core.scoring import Scoring
from ringmpi.core.tolerance import finite_scale
from tests.backends.meetings import Meeting
from tests.tolerances import assert_log_sum_exp_within, assert_within

Array = NDArray[Any]
Inputs = tuple[Array, Array, Array]


def inputs(
    rng: np.random.Generator, meeting: Meeting, heads: tuple[int, ...] = (1, 2, 1, 4, 4), dtype: Any = "f4"
) -> Inputs:
    """Q, k and v for (batch, key_heads, group, head_dim, value_dim)."""
    batch, key_heads, group, head_dim, value_dim = heads
    rows, keys = meeting.allowed.shape
    q = rng.standard_normal((batch, key_heads * group, rows, head_dim))
    k = rng.standard_normal((batch, key_heads, keys, head_dim))
    v = rng.standard_normal((batch, key_heads, keys, value_dim))
    return q.astype(dtype), k.astype(dtype), v.astype(dtype)


def arrays(partial: Partial) -> tuple[Array, Array, Array]:
    """Its three arrays."""
    return partial.row_max, partial.row_sum, partial.weighted_sum


def dense(q: Array, k: Array, v: Array, meeting: Meeting, scoring: Scoring, dtype: Any) -> tuple[Array, Array]:
    """(output, log_sum_exp), every operation in `dtype`."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.astype(dtype), np.repeat(k, group, 1).astype(dtype), np.repeat(v, group, 1).astype(dtype)
    scores = (q * dtype.type(scoring.scale)) @ k.swapaxes(-1, -2)
    if scoring.softcap is not None:
        cap = dtype.type(scoring.softcap)
        scores = cap * np.tanh(scores / cap)
    if scoring.alibi_slopes is not None:
        distance = np.abs(meeting.rows[:, None] - meeting.keys).astype(dtype)
        scores = scores - scoring.alibi_slopes.astype(dtype)[:, None, None] * distance
    scores = np.where(meeting.allowed, scores, -np.inf)
    largest = scores.max(-1, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isneginf(largest), 0, largest)[..., None])
    total = weights.sum(-1)
    divisor = np.where(total == 0, dtype.type(1), total)
    return (weights @ v) / divisor[..., None], np.where(total == 0, -np.inf, largest + np.log(divisor))


def assert_attended(found: Partial, q: Array, k: Array, v: Array, meeting: Meeting, scoring: Scoring) -> None:
    """`found` is the attention of these inputs, within the tolerance of its accumulation dtype. Uses `found` up."""
    narrow = accumulate_dtype(q.dtype)
    assert found.row_max.dtype == found.row_sum.dtype == found.weighted_sum.dtype == narrow
    naive, reference = (dense(q, k, v, meeting, scoring, dtype) for dtype in (narrow, wide_dtype(q.dtype)))
    output, log_sum_exp = finalize(found, narrow)
    assert_within(output, naive[0], reference[0], finite_scale(v))
    assert_log_sum_exp_within(log_sum_exp, naive[1], reference[1])
