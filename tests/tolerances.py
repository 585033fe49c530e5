"""The only tolerances of the test suite: those of ringmpi/core/tolerance.py, as assertions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.dtypes import accumulate_dtype, wide_dtype
from ringmpi.core.reference import dense_attention
from ringmpi.core.scoring import Scoring
from ringmpi.core.tolerance import finite_scale, judge, judge_log_sum_exp

Array = NDArray[Any]


def assert_within(found: Array, naive: Array, reference: Array, value_scale: float) -> None:
    """`found` is about as close to `reference` (wider) as `naive` is (accumulation dtype)."""
    verdict = judge(found, naive, reference, value_scale)
    assert verdict.passed, str(verdict)


def assert_log_sum_exp_within(found: Array, naive: Array, reference: Array) -> None:
    """The same for log_sum_exp, whose scale is its own."""
    verdict = judge_log_sum_exp(found, naive, reference)
    assert verdict.passed, f"log_sum_exp: {verdict}"


def assert_attention(
    found: tuple[Array, Array], q: Array, k: Array, v: Array, allowed: NDArray[np.bool_], scoring: Scoring, **sinks: Any
) -> None:
    """(output, log_sum_exp) is the attention of these inputs: [batch, heads, length, dim], `allowed` [Lq, Lk]."""
    dtypes = accumulate_dtype(q.dtype), wide_dtype(q.dtype)
    naive, reference = (dense_attention(q, k, v, allowed, scoring, dtype=dtype, **sinks) for dtype in dtypes)
    assert found[0].dtype == q.dtype
    assert found[1].dtype == dtypes[0]
    assert_within(found[0], naive[0], reference[0], finite_scale(v))
    assert_log_sum_exp_within(found[1], naive[1], reference[1])
