"""The policy accepts what rounding explains and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi import Mask, attention, attention_map
from ringmpi.core.dtypes import bfloat16
from ringmpi.core.tolerance import (
    error_bound,
    finite_scale,
    has_wider_reference,
    judge,
    longest_rows,
    same_ratio,
    score_terms,
    sum_of_weights_bound,
    weight_scale,
)
from ringmpi.errors import ShapeError
from tests.tolerances import judge_log_sum_exp

REFERENCE = np.array([[0.5, -0.25, 3.0], [0.0, 1.0, -2.0]])
NAIVE = REFERENCE.astype(np.float32)
EPS32 = 2.0**-23


def test_the_bound_is_twice_the_naive_error_and_four_epsilon():
    naive = NAIVE.copy()
    naive[1, 2] += np.float32(2.0**-20)
    bound = error_bound(naive, REFERENCE, np.dtype(np.float32), value_scale=5.0)
    np.testing.assert_allclose(bound, 2 * 2.0**-20 + 4 * EPS32 * 5.0, rtol=1e-12)


@pytest.mark.parametrize(("units", "passed"), [(-4, True), (4, True), (4.125, False), (-4.125, False)])
def test_an_error_passes_up_to_the_bound(units, passed):
    unit = 2.0**-20
    verdict = judge(REFERENCE + units * unit, REFERENCE + 2 * unit, REFERENCE.astype(np.longdouble), value_scale=0.0)
    assert verdict.passed is passed
    assert verdict.ratio == abs(units) / 4


def test_any_error_fails_where_none_is_permitted():
    assert judge(NAIVE, NAIVE, REFERENCE, value_scale=0.0).passed
    assert not judge(np.nextafter(NAIVE, np.float32(9)), NAIVE, REFERENCE, value_scale=0.0).passed


@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
@given(value=st.floats(-100, 100), step=st.sampled_from([-1, 1]))
def test_sixteen_bits_pass_when_rounded_once_and_fail_one_neighbour_further(dtype, value, step):
    reference = np.array([value])
    rounded = reference.astype(dtype)
    assert judge(rounded, reference.astype(np.float32), reference, value_scale=0.0).passed
    if rounded.view(np.int16) & 0x7FFF > 2:  # else two steps down from 0 are not neighbours
        neighbour = (rounded.view(np.int16) + np.int16(2 * step)).view(dtype)
        assert not judge(neighbour, reference.astype(np.float32), reference, value_scale=0.0).passed


def test_a_sixteen_bit_ulp_is_that_of_the_reference_down_to_subnormals():
    reference = np.array([1.0, 1.9, 2.0, 2.0**-14, 2.0**-20, 0.0])
    reference = reference.astype(np.float32).astype(np.float64)
    bound = error_bound(reference.astype(np.float32), reference, np.dtype(np.float16), value_scale=0.0)
    np.testing.assert_array_equal(bound / 0.51, [2.0**-10, 2.0**-10, 2.0**-9, 2.0**-24, 2.0**-24, 2.0**-24])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_fails_where_the_reference_is_finite_and_passes_where_it_is_the_same(value):
    found, reference = NAIVE.copy(), REFERENCE.copy()
    found[1, 0] = value
    verdict = judge(found, NAIVE, reference, value_scale=1e30)
    assert not verdict.passed
    assert verdict.where == (1, 0)
    assert verdict.ratio == np.inf
    reference[1, 0] = value
    assert judge(found, NAIVE, reference, value_scale=1.0).passed


@pytest.mark.parametrize("found_value", [0.0, -1e30, np.inf, np.nan])
def test_a_row_without_keys_must_be_minus_infinity_exactly(found_value):
    found, reference = NAIVE.copy(), REFERENCE.copy()
    found[0, 1], reference[0, 1] = found_value, -np.inf
    verdict = judge_log_sum_exp(found, reference.astype(np.float32), reference)
    assert not verdict.passed
    assert verdict.where == (0, 1)


def test_the_worst_element_is_named():
    found = NAIVE.copy()
    found[0, 2] += np.float32(1.0)
    verdict = judge(found, NAIVE, REFERENCE, value_scale=3.0)
    assert not verdict.passed
    assert verdict.where == (0, 2)
    assert verdict.error == 1.0
    assert verdict.bound == 4 * EPS32 * 3.0
    assert (verdict.found, verdict.reference) == (4.0, 3.0)
    assert "at [0, 2]: found 4, reference 3" in str(verdict)


def test_the_scale_of_log_sum_exp_is_its_own_largest_value():
    reference = np.array([1024.0, 0.5, -np.inf])
    naive = reference.astype(np.float32)
    for element in (0, 1):
        found = naive.copy()
        found[element] += np.float32(4 * EPS32 * 1024)
        assert judge_log_sum_exp(found, naive, reference).passed
        found[element] += np.float32(EPS32 * 1024)
        assert not judge_log_sum_exp(found, naive, reference).passed


def test_no_elements_pass():
    nothing = np.empty((0, 3))
    assert judge(nothing, nothing, nothing, value_scale=0.0).passed


def test_arrays_of_other_shapes_are_refused():
    with pytest.raises(ShapeError, match=r"found \(2, 3\), naive \(1, 3\)"):
        judge(NAIVE, NAIVE[:1], REFERENCE, value_scale=1.0)


def test_the_value_scale_ignores_what_is_not_finite():
    assert finite_scale(np.array([np.nan, -3.0, np.inf, 2.0], bfloat16)) == 3.0
    assert finite_scale(np.array([np.nan])) == 0.0


def test_float64_has_a_wider_judge_exactly_where_longdouble_has_more_digits():
    assert has_wider_reference(np.dtype(np.float32))
    assert has_wider_reference(bfloat16)
    assert has_wider_reference(np.dtype(np.float64)) is bool(np.finfo(np.longdouble).nmant > 52)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (0.3, 0.3, True),
        (0.3, 0.59, True),
        (0.3, 0.61, False),
        (0.9, 1.1, False),  # one passes
        (1.2, 1.9, True),
        (0.0, 0.009, True),
        (0.0, 0.021, False),
        (np.inf, np.inf, True),
        (np.inf, 3.0, False),
        (np.nan, np.nan, True),
        (np.nan, 0.5, False),
    ],
)
def test_worst_ratios_of_two_machines_are_the_same_within_a_factor_and_on_one_side_of_1(one, other, same):
    assert same_ratio(one, other) == same_ratio(other, one) == same


def test_scores_are_rounded_by_what_they_are_made_of_head_by_head():
    q, k = np.zeros((1, 4, 3, 2)), np.zeros((1, 2, 5, 2))
    q[0, 1, 2], q[0, 3, 0], k[0, 0, 4], k[0, 1, 1] = (3, 4), (6, 8), (0, 2), (1, 0)
    q[0, 3, 1], k[0, 0, 0] = np.nan, np.inf
    terms = score_terms(longest_rows(q), longest_rows(k), -0.5)
    np.testing.assert_array_equal(terms, [[0, 5, 0, 5]])
    weights = np.full((1, 4, 3, 2), 0.25)
    weights[0, 0, 0, 0] = np.nan
    scale = weight_scale(weights, np.array([-2.0, np.inf]), terms)
    assert scale[0, :, 2, 1].tolist() == [0.5, 1.75, 0.5, 1.75]
    assert scale[0, 0, 0, 0] == 0
    bound = sum_of_weights_bound(np.dtype(np.float32), np.array([-2.0]), terms)
    np.testing.assert_array_equal(bound, [[32 * EPS32, 52 * EPS32, 32 * EPS32, 52 * EPS32]])


@pytest.mark.parametrize("large", [0, 100])
def test_sums_of_honest_weights_pass_and_a_lost_pair_fails(large):
    """Products of NumPy are summed in another order when a rank has other keys: the two passes round otherwise."""
    rng = np.random.default_rng(66)
    q, k = rng.standard_normal((2, 1, 150, 64), dtype=np.float32)
    if large:
        q[..., :32], k[..., :32] = q[..., :32] + large, 0.01 * k[..., :32] + large
        q[..., 32:], k[..., 32:] = q[..., :32], -large
    options = {"mask": Mask.causal(), "ranks": 2, "backend": "numpy"}
    log_sum_exp = attention(q, k, k, **options).log_sum_exp
    weights = attention_map(q, k, log_sum_exp, block=1, **options).map
    terms = score_terms(longest_rows(q[None]), longest_rows(k[None]), 64**-0.5)
    bound = np.max(sum_of_weights_bound(np.dtype(np.float32), log_sum_exp, terms))
    error = np.abs(weights.sum(-1, dtype=np.float64) - 1).max()
    assert error <= bound
    if large:
        assert error > np.max(sum_of_weights_bound(np.dtype(np.float32), log_sum_exp, 0)), "what terms are for"
    else:
        assert (weights[0][np.tri(150, dtype=bool)] > 2 * bound).mean() > 0.99, "pairs that cannot be lost unseen"
