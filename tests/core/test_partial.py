"""Partials form a commutative monoid, and finalize is the plain formula."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi.core.dtypes import bfloat16
from ringmpi.core.partial import Partial, empty_partial, finalize, merge, sink_partial
from ringmpi.core.reference import dense_attention
from ringmpi.core.scoring import Scoring
from ringmpi.errors import ShapeError
from tests.tolerances import assert_attention

ROWS, KEYS, DIM, VALUE_DIM = 5, 12, 3, 2
SEEDS = st.integers(0, 2**32)
DTYPES = st.sampled_from([np.float32, np.float64])
UNIT = Scoring(1.0)


def partial_of(q, k, v, allowed):
    """The partial of one block of keys, by its definition."""
    s = np.where(allowed, q @ np.swapaxes(k, -1, -2), q.dtype.type(-np.inf))
    row_max = s.max(-1, initial=-np.inf)
    p = np.exp(s - np.where(np.isneginf(row_max), 0, row_max)[..., None])
    return Partial(row_max, p.sum(-1), p @ v)


def draw_inputs(seed, dtype, size=1.0, density=0.4):
    """Arrays [1, 2, length, dim], and a mask in which some rows see no key of a block."""
    rng = np.random.default_rng(seed)
    q, k = (size * rng.standard_normal((1, 2, n, DIM)) for n in (ROWS, KEYS))
    v = rng.standard_normal((1, 2, KEYS, VALUE_DIM))
    allowed = rng.random((ROWS, KEYS)) < density
    allowed[0] = False
    return (*(x.astype(dtype) for x in (q, k, v)), allowed)


def blocks(q, k, v, allowed, cuts):
    edges = [0, *sorted(cuts), KEYS]
    parts = (slice(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True))
    return [partial_of(q, k[:, :, part], v[:, :, part], allowed[:, part]) for part in parts]


def bits(partial):
    return tuple(array.tobytes() for array in (partial.row_max, partial.row_sum, partial.weighted_sum))


@given(seed=SEEDS, dtype=DTYPES, size=st.sampled_from([1e-3, 1.0, 30.0]), cut=st.integers(0, KEYS))
def test_merge_commutes_bit_by_bit(seed, dtype, size, cut):
    a, b = blocks(*draw_inputs(seed, dtype, size), [cut])
    assert bits(merge(a, b)) == bits(merge(b, a))


@given(seed=SEEDS, dtype=DTYPES, size=st.sampled_from([1e-3, 1.0, 30.0]))
def test_merging_with_the_empty_partial_changes_no_bit(seed, dtype, size):
    [a] = blocks(*draw_inputs(seed, dtype, size), [])
    empty = empty_partial(1, 2, ROWS, VALUE_DIM, np.dtype(dtype))
    assert bits(merge(a, empty)) == bits(a) == bits(merge(empty, a))


@given(
    seed=SEEDS,
    dtype=DTYPES,
    size=st.sampled_from([1e-3, 1.0, 30.0]),
    cuts=st.sets(st.integers(1, KEYS - 1), min_size=2, max_size=5),
    data=st.data(),
)
def test_blocks_of_keys_merge_to_the_whole_in_any_order_and_grouping(seed, dtype, size, cuts, data):
    q, k, v, allowed = draw_inputs(seed, dtype, size)
    parts = data.draw(st.permutations(blocks(q, k, v, allowed, cuts)))
    split = data.draw(st.integers(1, len(parts) - 1))
    left_to_right = reduce(merge, parts)
    grouped = merge(reduce(merge, parts[:split]), reduce(merge, parts[split:]))
    for total in (left_to_right, grouped):
        assert_attention(finalize(total, np.dtype(dtype)), q, k, v, allowed, UNIT)


def test_merge_leaves_its_inputs_alone():
    a, b = blocks(*draw_inputs(0, np.float64), [5])
    before = bits(a), bits(b)
    merge(a, b)
    assert before == (bits(a), bits(b))


def test_partials_of_other_rows_or_dtype_are_refused():
    a = empty_partial(1, 2, 3, 4, np.dtype(np.float32))
    for b in (empty_partial(1, 2, 4, 4, np.dtype(np.float32)), empty_partial(1, 2, 3, 4, np.dtype(np.float64))):
        with pytest.raises(ShapeError, match="merge takes two of the same queries, in one dtype"):
            merge(a, b)


def test_rows_without_keys_merge_without_a_single_floating_point_error():
    """Fails with FloatingPointError when `shift_of` returns row_max as it is: -inf - -inf is NaN."""
    empty = empty_partial(1, 2, 3, 4, np.dtype(np.float32))
    assert bits(merge(empty, empty)) == bits(empty)


def test_the_guard_is_what_keeps_rows_without_keys_from_nan(monkeypatch):
    monkeypatch.setattr("ringmpi.core.partial.shift_of", lambda row_max: row_max)
    empty = empty_partial(1, 2, 3, 4, np.dtype(np.float32))
    with pytest.raises(FloatingPointError, match="invalid value"):
        merge(empty, empty)


@pytest.mark.parametrize("dtype", [np.float16, bfloat16, np.float32, np.float64])
def test_finalized_rows_without_keys_are_zero_and_minus_infinity(dtype):
    accumulate = np.dtype(np.float64 if dtype == np.float64 else np.float32)
    output, log_sum_exp = finalize(empty_partial(1, 2, 3, 4, accumulate), np.dtype(dtype))
    assert output.dtype == dtype
    assert log_sum_exp.dtype == accumulate
    assert not output.any()
    assert (log_sum_exp == -np.inf).all()


@given(seed=SEEDS, dtype=st.sampled_from([np.float16, bfloat16, np.float32, np.float64]))
def test_finalize_is_the_plain_formula_in_the_input_dtype(seed, dtype):
    q, k, v, allowed = draw_inputs(seed, dtype)
    accumulate = np.float64 if dtype == np.float64 else np.float32
    parts = blocks(*(x.astype(accumulate) for x in (q, k, v)), allowed, [4, 9])
    assert_attention(finalize(reduce(merge, parts), np.dtype(dtype)), q, k, v, allowed, UNIT)


@given(seed=SEEDS, logits=st.lists(st.just(-np.inf) | st.floats(-30, 30), min_size=2, max_size=2))
def test_a_sink_merges_to_one_more_score_in_the_normaliser(seed, logits):
    q, k, v, allowed = draw_inputs(seed, np.float32)
    sinks = np.array(logits)
    total = partial_of(q, k, v, allowed)
    found = finalize(merge(total, sink_partial(sinks, total)), q.dtype)
    assert_attention(found, q, k, v, allowed, UNIT, sink_logits=sinks)


def test_a_sink_of_minus_infinity_changes_no_bit():
    [a] = blocks(*draw_inputs(1, np.float32), [])
    no_sink = sink_partial(np.full(2, -np.inf), a)
    assert bits(no_sink) == bits(empty_partial(1, 2, ROWS, VALUE_DIM, np.dtype(np.float32)))
    assert bits(merge(a, no_sink)) == bits(a)


def test_a_sink_takes_weight_from_the_keys():
    q, k, v, allowed = draw_inputs(2, np.float64, density=1.0)
    without, _ = dense_attention(q, k, v, allowed, UNIT, dtype=np.float64)
    total = partial_of(q, k, v, allowed)
    heavy, _ = finalize(merge(total, sink_partial(np.full(2, 50.0), total)), q.dtype)
    assert np.abs(heavy).max() < 1e-12 < np.abs(without[:, :, 1:]).max()
