"""Derivatives of the wide formula by central differences: they know nothing of how a gradient is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.dtypes import wide_dtype
from ringmpi.core.reference import dense_attention
from ringmpi.core.scoring import Scoring

Array = NDArray[Any]
WIDE = wide_dtype(np.dtype(np.float64))
STEP = WIDE.type(2.0) ** -12


def slope(function: Callable[[Any], Any], at: Any) -> Any:
    """Derivative of `function` by four of its values, of fourth order."""
    near = function(at + STEP) - function(at - STEP)
    far = function(at + 2 * STEP) - function(at - 2 * STEP)
    return (8 * near - far) / (12 * STEP)


def differences(function: Callable[[Array], Any], array: Array) -> Array:
    """Derivative of `function` by each element of `array`, in the wide dtype."""
    found = np.empty(array.shape, WIDE)
    for index in np.ndindex(array.shape):

        def along(value: Any, index: tuple[int, ...] = index) -> Any:
            changed = array.astype(WIDE)
            changed[index] = value
            return function(changed)

        found[index] = slope(along, WIDE.type(array[index]))
    return found


def attention_differences(
    grad_output: Array,
    inputs: dict[str, Array],
    allowed: NDArray[np.bool_],
    scoring: Scoring,
    grad_log_sum_exp: Array | None = None,
) -> dict[str, Array]:
    """Derivatives of sum(dO O) + sum(d log_sum_exp log_sum_exp) by each of q, k, v, sink_logits, alibi_slopes given."""

    def scalar(given: dict[str, Array]) -> Any:
        output, log_sum_exp = dense_attention(
            given["q"],
            given["k"],
            given["v"],
            allowed,
            Scoring(scoring.scale, scoring.softcap, given.get("alibi_slopes")),
            sink_logits=given.get("sink_logits"),
            dtype=WIDE,
        )
        total = (grad_output * output).sum()
        if grad_log_sum_exp is not None:
            total += (grad_log_sum_exp * np.where(np.isneginf(log_sum_exp), 0, log_sum_exp)).sum()
        return total

    return {
        name: differences(lambda changed, name=name: scalar({**inputs, name: changed}), array)
        for name, array in inputs.items()
    }
