"""How far from the plain formula a case is, in units of what the tolerances permit: 1 is the limit."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.dtypes import epsilon, wide_dtype
from ringmpi.core.gradients import Gradients
from ringmpi.core.partial import Partial, finalize
from ringmpi.core.reference import dense_attention
from ringmpi.core.tolerance import error_bound, error_ratios, finite_scale
from tests.cuda.cases import Case, copied
from tests.dense import DenseGradients, dense_attention_backward
from tests.tolerances import gradient_scales, judge_log_sum_exp

Array = NDArray[Any]


def forward_ratio(case: Case, partial: Partial) -> float:
    """Of output and log_sum_exp; `partial` stays as it is."""
    naive, reference = _attention(case)
    output, log_sum_exp = finalize(copied(partial), case.sums)
    of_output = _worst(case, output, naive[0], reference[0], finite_scale(case.inputs()[2]))
    return max(of_output, judge_log_sum_exp(log_sum_exp, naive[1], reference[1]).ratio)


def backward_ratio(case: Case, found: Gradients) -> float:
    """Of all gradients, before they are cast to 16 bit."""
    naive, reference, scales = _gradients(case)
    theirs = {"query": "query", "key": "key", "value": "value"}
    if case.scoring.alibi_slopes is not None:
        theirs["slope"] = "alibi_slopes"
    return max(
        _worst(case, getattr(found, own), getattr(naive, name), getattr(reference, name), float(getattr(scales, name)))
        for own, name in theirs.items()
    )


@cache
def _attention(case: Case) -> tuple[Any, Any]:
    """(output, log_sum_exp) by the plain formula: in the dtype of sums, and in a wider one."""
    q, k, v, _ = case.inputs()
    given = q, k, v, case.meeting().allowed, case.scoring
    return dense_attention(*given, dtype=case.sums), dense_attention(*given, dtype=wide_dtype(case.dtype))


@cache
def _gradients(case: Case) -> tuple[DenseGradients, DenseGradients, DenseGradients]:
    """The same of gradients, and the sizes of what they are sums of."""
    q, k, v, grad_output = case.inputs()
    given = grad_output, q, k, v, case.meeting().allowed, case.scoring
    naive = dense_attention_backward(*given, dtype=case.sums, output=_attention(case)[0][0].astype(case.dtype))
    return naive, dense_attention_backward(*given, dtype=wide_dtype(case.dtype)), gradient_scales(*given)


def _worst(case: Case, found: Array, naive: Array, reference: Array, scale: float) -> float:
    """NaN where some number is."""
    if not case.rounded:
        return float(error_ratios(found, naive, reference, scale).max(initial=0))
    permitted = (
        error_bound(naive, reference, found.dtype, scale) + epsilon(case.dtype) / 2 * scale
    )  # tests/tolerances.py
    return float((np.abs(found - reference) / permitted).max(initial=0))
