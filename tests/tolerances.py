"""The only tolerances of the test suite: those of ringmpi/core/tolerance.py, as assertions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.dtypes import accumulate_dtype, epsilon, wide_dtype
from ringmpi.core.gradient_tolerance import TermSizes
from ringmpi.core.gradient_tolerance import gradient_scales as policy_scales
from ringmpi.core.record import Record, Recording
from ringmpi.core.reference import KeySlab, dense_attention
from ringmpi.core.reference_record import RowsRecord
from ringmpi.core.scoring import Scoring
from ringmpi.core.tolerance import (
    Verdict,
    error_bound,
    finite_scale,
    has_wider_reference,
    judge,
    log_sum_exp_scale,
    longest_row,
    longest_rows,
    record_scales,
    score_terms,
    weight_scale,
)
from tests.dense import DenseGradients, dense_attention_backward, dense_map, dense_weights

Array = NDArray[Any]

# Of the losses of a training in float64, relative. Steps feed rounding back, so it grows a little with each. One lost
# pair of 125,751 moves the losses by 1e-6, the gradient of the sinks counted twice by 6e-8.
CURVE_TOLERANCE = 1e-10

# Of 1, which predicted over simulated seconds of a pass would be: the prediction lets every message share the busiest
# cable of its way for its whole step. Off by up to 0.06 for rings, and nearly 0.1 where a broadcast
# begins on a random order.
PREDICTED_OVER_SIMULATED = 0.1


def assert_within(found: Array, naive: Array, reference: Array, value_scale: float) -> None:
    """`found` is about as close to `reference` (wider) as `naive` is (accumulation dtype)."""
    verdict = judge(found, naive, reference, value_scale)
    assert verdict.passed, str(verdict)


def assert_within_rounded(found: Array, naive: Array, reference: Array, value_scale: float, weights: np.dtype) -> None:
    """The same where weights were rounded to the dtype `weights` before they met the other factor of their terms.

    A weight is then off by half a unit in its last place, a sum of products by eps / 2 of the sizes of its terms.
    """
    permitted = error_bound(naive, reference, found.dtype, value_scale) + epsilon(weights) / 2 * value_scale
    excess = (np.abs(found - reference) / permitted).max(initial=0)
    assert excess <= 1, f"{excess:.2f} times what rounded weights permit"


def judge_log_sum_exp(found: Array, naive: Array, reference: Array) -> Verdict:
    """Judge a log_sum_exp: as `judge`, on a scale of its own."""
    return judge(found, naive, reference, log_sum_exp_scale(reference))


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


def assert_record(
    found: Record,
    q: Array,
    k: Array,
    allowed: NDArray[np.bool_],
    scoring: Scoring,
    recording: Recording,
    positions: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
    **sinks: Any,
) -> None:
    """`found` is the record of these inputs. Of scores that are equal to rounding any may be the top one.

    positions: of the rows and of the keys, where they are not 0, 1, ...
    """
    places = positions or (np.arange(q.shape[2]), np.arange(k.shape[2]))
    dtypes = accumulate_dtype(q.dtype), wide_dtype(q.dtype)
    judges = [
        RowsRecord(q.astype(dtype), places[0], scoring, sinks=recording.sinks, claimed=found.top_key)
        for dtype in dtypes
    ]
    for one in judges:
        one.absorb(KeySlab(places[1], allowed, k, k))
    naive, reference = (one.finish(**sinks) for one in judges)
    assert found.top_key.dtype == np.int64
    np.testing.assert_array_equal(found.top_key < 0, reference.top_key < 0)
    scales = record_scales(reference)
    for name in ("entropy", "distance", "top_score", "sinks"):
        array = getattr(found, name)
        assert array.dtype == dtypes[0]
        verdict = judge(array, getattr(naive, name), getattr(reference, name), scales[name])
        assert verdict.passed, f"{name}: {verdict}"
    claimed = judges[1].claimed_score.astype(dtypes[0])
    verdict = judge(claimed, naive.top_score, reference.top_score, scales["top_key"])
    assert verdict.passed, f"score of top_key: {verdict}"


def assert_map(
    found: tuple[Array, Array],
    q: Array,
    k: Array,
    allowed: NDArray[np.bool_],
    scoring: Scoring,
    block: int,
    **sinks: Any,
) -> None:
    """(map, received) is that of these inputs: [batch, heads, length, dim], `allowed` [Lq, Lk]."""
    exact, near = (
        dense_weights(q, k, allowed, scoring, dtype=dtype, **sinks)
        for dtype in (wide_dtype(q.dtype), accumulate_dtype(q.dtype))
    )
    terms = score_terms(longest_rows(q), longest_rows(k), scoring.scale)
    for name, array, of in (("map", found[0], _map_of), ("received", found[1], lambda p, *_: p.sum(2))):
        assert array.dtype == accumulate_dtype(q.dtype)
        reference, naive = (of(weights, allowed, block) for weights, _ in (exact, near))
        verdict = judge(array, naive, reference, weight_scale(reference, exact[1], terms))
        assert verdict.passed, f"{name}: {verdict}"


def _map_of(weights: Array, allowed: NDArray[np.bool_], block: int) -> Array:
    starts = np.arange(0, weights.shape[3], block)
    by_key_block = np.add.reduceat(weights, starts, axis=3) if len(starts) else weights
    return dense_map(by_key_block, allowed, block)


def assert_gradients(
    found: tuple[Array | None, ...],
    grad_output: Array,
    q: Array,
    k: Array,
    v: Array,
    allowed: NDArray[np.bool_],
    scoring: Scoring,
    **rows: Any,
) -> None:
    """`found` are the gradients of q, k, v, sink_logits, alibi_slopes (None: not asked for) of these inputs.

    Naive is the plain formula in the accumulation dtype, its delta taken from an output in the input dtype: that is
    what a forward pass keeps. The reference knows the exact output.
    """
    narrow, wide = accumulate_dtype(q.dtype), wide_dtype(q.dtype)
    sinks = rows.get("sink_logits")
    output, _ = dense_attention(q, k, v, allowed, scoring, sink_logits=sinks, dtype=narrow)
    inputs = grad_output, q, k, v, allowed, scoring
    naive = dense_attention_backward(*inputs, dtype=narrow, **rows, output=output.astype(q.dtype))
    reference = dense_attention_backward(*inputs, dtype=wide, **rows)
    for array in found[:3]:
        assert array is not None
        assert array.dtype == q.dtype
    scales = gradient_scales(*inputs, **rows)
    for name, array, near, exact, scale in zip(DenseGradients._fields, found, naive, reference, scales, strict=True):
        if array is not None:
            verdict = judge(array if array.ndim > 1 else array.astype(narrow), near, exact, float(scale))
            assert verdict.passed, f"gradient of {name}: {verdict}"


def gradient_scales(
    grad_output: Array,
    q: Array,
    k: Array,
    v: Array,
    allowed: NDArray[np.bool_],
    scoring: Scoring,
    **rows: Any,
) -> DenseGradients:
    """The scale of each gradient: `gradient_scales` of the policy; those of sinks and slopes sum over all rows."""
    upstream = rows.get("grad_log_sum_exp")
    ones = dense_attention_backward(
        np.ones_like(grad_output), q, k, v, allowed, scoring, dtype=np.float64, sink_logits=rows.get("sink_logits")
    )
    sizes = TermSizes(
        query=finite_scale(q),
        key=finite_scale(k),
        grad_output=finite_scale(grad_output),
        longest_grad_output=longest_row(grad_output),
        longest_value=longest_row(v),
        grad_log_sum_exp=0 if upstream is None else finite_scale(upstream),
    )
    weight = finite_scale(ones.value)  # largest sum of probabilities that a key has got
    over_rows = sizes.inner * q.shape[0] * q.shape[2]
    scales = *policy_scales(sizes, scoring.scale, weight), over_rows, over_rows * max(allowed.shape)
    return DenseGradients(*map(np.float64, scales))


def assert_derivative(found: Array, differences: Array, size: float = 1.0) -> None:
    """A gradient of float64 inputs is what differences of fourth order of the wide formula say, to 1e-13 of `size`.

    With steps of 2^-12 the differences are off by about 2^-48 / 30 of a fifth derivative, and by rounding of
    eps(wide) 2^12 / 2: 2e-16, or 5e-13 where longdouble is float64.
    """
    tolerance = (1e-13 if has_wider_reference(np.dtype(np.float64)) else 1e-11) * size
    error = np.abs(found - differences).max(initial=0)
    assert error <= tolerance, f"differs from central differences by {error:.2g}, permitted {tolerance:.2g}"


def assert_same_means(found: Any, expected: Any, terms: int) -> None:
    """Means over the same float64 numbers, `terms` of them, added in another order."""
    np.testing.assert_allclose(found, expected, rtol=terms * float(np.finfo(np.float64).eps), atol=0)
