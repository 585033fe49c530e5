"""The judge against sums written out in Python, and against itself in another order."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi.core.dtypes import bfloat16
from ringmpi.core.reference import KeySlab, attend_rows, dense_attention, row_intervals
from ringmpi.core.scoring import Scoring
from tests.tolerances import assert_within

PLAIN = Scoring(scale=0.5)
CAPPED = Scoring(scale=0.5, softcap=1.5)
SLOPED = Scoring(scale=0.5, softcap=3.0, alibi_slopes=np.array([0.25, 0.5, 0.0, 1.0]))


def inputs(rng, *, batch=2, heads=4, key_heads=2, queries=5, keys=7, dim=3, value_dim=2):
    q = rng.standard_normal((batch, heads, queries, dim))
    k = rng.standard_normal((batch, key_heads, keys, dim))
    v = rng.standard_normal((batch, key_heads, keys, value_dim))
    return q, k, v


def written_out(q, k, v, allowed, scoring, sinks):
    """One row at a time, one sum at a time, without maxima: only for scores of moderate size."""
    output, log_sum_exp = np.zeros((*q.shape[:-1], v.shape[-1])), np.full(q.shape[:-1], -np.inf)
    group = q.shape[1] // k.shape[1]
    for b, h, i in np.ndindex(q.shape[:-1]):
        total, weighted = math.exp(sinks[h]) if sinks is not None else 0.0, np.zeros(v.shape[-1])
        for j in np.flatnonzero(allowed[i]):
            s = scoring.scale * math.fsum(q[b, h, i] * k[b, h // group, j])
            s = s if scoring.softcap is None else scoring.softcap * math.tanh(s / scoring.softcap)
            s -= 0 if scoring.alibi_slopes is None else scoring.alibi_slopes[h] * abs(i - j)
            total += math.exp(s)
            weighted += math.exp(s) * v[b, h // group, j]
        if total:
            output[b, h, i], log_sum_exp[b, h, i] = weighted / total, math.log(total)
    return output, log_sum_exp


@pytest.mark.parametrize("scoring", [PLAIN, CAPPED, SLOPED])
@pytest.mark.parametrize("sinks", [None, np.array([0.5, -np.inf, 2.0, -1.0])])
def test_dense_attention_is_the_formula_written_out(rng, scoring, sinks):
    q, k, v = inputs(rng)
    allowed = rng.random((5, 7)) < 0.5
    allowed[3] = False
    output, log_sum_exp = dense_attention(q, k, v, allowed, scoring, sink_logits=sinks, dtype=np.float64)
    expected = written_out(q, k, v, allowed, scoring, sinks)
    np.testing.assert_allclose(output, expected[0], rtol=0, atol=1e-14)
    np.testing.assert_allclose(log_sum_exp, expected[1], rtol=0, atol=1e-14)


def test_a_row_without_keys_is_zero_and_minus_infinity(rng):
    q, k, v = inputs(rng)
    output, log_sum_exp = dense_attention(q, k, v, np.zeros((5, 7), bool), PLAIN, dtype=np.float32)
    assert not output.any()
    assert (log_sum_exp == -np.inf).all()


def test_a_row_without_keys_sees_its_sink(rng):
    q, k, v = inputs(rng)
    sinks = np.arange(4.0)
    none = np.zeros((5, 7), bool)
    output, log_sum_exp = dense_attention(q, k, v, none, PLAIN, sink_logits=sinks, dtype=np.float64)
    assert not output.any()
    assert (log_sum_exp == sinks[:, None]).all()


@pytest.mark.parametrize(("queries", "keys"), [(5, 0), (0, 7), (0, 0)])
def test_no_queries_or_no_keys_have_the_shapes_of_the_rest(rng, queries, keys):
    q, k, v = inputs(rng, queries=queries, keys=keys)
    output, log_sum_exp = dense_attention(q, k, v, np.ones((queries, keys), bool), PLAIN, dtype=np.float32)
    assert output.shape == (2, 4, queries, 2)
    assert log_sum_exp.shape == (2, 4, queries)
    assert (log_sum_exp == -np.inf).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
def test_arithmetic_is_in_the_dtype_asked_for(rng, dtype):
    q, k, v = (x.astype(bfloat16) for x in inputs(rng))
    output, log_sum_exp = dense_attention(q, k, v, np.ones((5, 7), bool), SLOPED, dtype=dtype)
    assert output.dtype == log_sum_exp.dtype == dtype


def test_large_scores_do_not_overflow(rng):
    q, k, v = inputs(rng)
    output, log_sum_exp = dense_attention(q * 1e4, k * 1e4, v, np.ones((5, 7), bool), PLAIN, dtype=np.float32)
    assert np.isfinite(output).all()
    assert np.isfinite(log_sum_exp).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("poisoned", ["k", "v"])
def test_what_is_not_finite_reaches_only_rows_that_see_it(rng, value, poisoned):
    q, k, v = inputs(rng)
    allowed = np.tri(5, 7, dtype=bool)
    before = dense_attention(q, k, v, allowed, PLAIN, dtype=np.float64)
    {"k": k, "v": v}[poisoned][:, :, 3, 0] = value
    after = dense_attention(q, k, v, allowed, PLAIN, dtype=np.float64)
    np.testing.assert_allclose(after[0][:, :, :3], before[0][:, :, :3], rtol=0, atol=1e-15)
    assert (after[1][:, :, :3] == before[1][:, :, :3]).all()
    if poisoned == "v":  # a weight is above 0, so that its product is the value or NaN; the other channel is untouched
        np.testing.assert_array_equal(after[0][:, :, 3:, 0], np.full((2, 4, 2), value))
        assert np.isfinite(after[0][..., 1]).all()
    elif math.isnan(value):
        assert np.isnan(after[0][:, :, 3:]).all()


def test_infinities_of_both_signs_sum_to_nan(rng):
    q, k, v = inputs(rng)
    v[:, :, 2], v[:, :, 4] = np.inf, -np.inf
    output, _ = dense_attention(q, k, v, np.ones((5, 7), bool), PLAIN, dtype=np.float64)
    assert np.isnan(output).all()


def test_rows_are_the_same_in_blocks_of_any_height(rng, monkeypatch):
    q, k, v = inputs(rng, queries=11)
    allowed = rng.random((11, 7)) < 0.7
    whole = dense_attention(q, k, v, allowed, SLOPED, dtype=np.float64)
    monkeypatch.setattr("ringmpi.core.reference.SCORE_BYTES", 2 * 4 * 7 * 8 * 3)
    blocks = dense_attention(q, k, v, allowed, SLOPED, dtype=np.float64)
    np.testing.assert_allclose(blocks[0], whole[0], rtol=0, atol=1e-15)
    np.testing.assert_allclose(blocks[1], whole[1], rtol=0, atol=1e-15)


@given(seed=st.integers(0, 2**32), cuts=st.sets(st.integers(0, 23)), reverse=st.booleans())
def test_slabs_of_keys_in_any_order_give_the_dense_result(seed, cuts, reverse):
    rng = np.random.default_rng(seed)
    q, k, v = inputs(rng, queries=6, keys=23)
    rows = np.array([0, 3, 4, 9, 20, 40])
    allowed = rng.random((41, 23)) < 0.4
    q_all = np.zeros((2, 4, 41, 3))
    q_all[:, :, rows] = q
    edges = [0, *sorted(cuts), 23]
    slabs = [
        KeySlab(range(a, b), allowed[rows, a:b], k[:, :, a:b], v[:, :, a:b])
        for a, b in zip(edges[:-1], edges[1:], strict=True)
    ]
    found = attend_rows(q, rows, slabs[::-1] if reverse else slabs, SLOPED, dtypes=[np.dtype(np.float64)] * 2)
    for part in (0, 1):
        naive, reference = (dense_attention(q_all, k, v, allowed, SLOPED, dtype=d)[part][:, :, rows] for d in "dg")
        assert_within(found[0][part], naive, reference, value_scale=max(1, np.abs(v).max()))
        np.testing.assert_array_equal(found[0][part], found[1][part])


def test_a_later_slab_takes_over_from_a_smaller_maximum():
    """Without scaling the old sums down by e^(old maximum - new maximum) the old key would weigh as much as the new."""
    slabs = [
        KeySlab(range(j, j + 1), np.ones((1, 1), bool), np.full((1, 1, 1, 1), 1e3 * j), np.full((1, 1, 1, 1), 1.0 - j))
        for j in (0, 1)
    ]
    [(output, log_sum_exp)] = attend_rows(
        np.ones((1, 1, 1, 1)), np.array([0]), slabs, Scoring(1.0), dtypes=[np.dtype(np.float64)]
    )
    assert output.item() == 0
    assert log_sum_exp.item() == 1e3


UNBOUNDED = 1 << 60
BANDS = st.tuples(st.integers(-6, 6), st.integers(0, 8)).map(lambda band: (band[0], band[0] + band[1]))


@st.composite
def disjoint_slices(draw):
    """Slices one below the other and one beside the other: disjoint whatever their bands."""
    edges = sorted(draw(st.sets(st.integers(0, 20), min_size=2, max_size=6)))
    table = []
    for q0, q1 in zip(edges[:-1], edges[1:], strict=True):
        columns = sorted(draw(st.sets(st.integers(0, 15), max_size=4)))
        for k0, k1 in zip(columns[:-1], columns[1:], strict=True):
            low, high = draw(BANDS | st.just((-UNBOUNDED, UNBOUNDED)) | st.just((-UNBOUNDED, 0)))
            table.append((q0, q1, k0, k1, low, high))
    return np.array(table, np.int64).reshape(-1, 6)


@given(slices=disjoint_slices(), positions=st.sets(st.integers(0, 22)), start=st.integers(0, 12), n=st.integers(0, 8))
def test_row_intervals_are_the_definition_of_a_slice(slices, positions, start, n):
    rows, keys = np.array(sorted(positions), np.int64), range(start, start + n)
    expected = np.zeros((len(rows), n), bool)
    for q0, q1, k0, k1, low, high in slices.tolist():
        for u, i in enumerate(rows.tolist()):
            for v, j in enumerate(keys):
                expected[u, v] |= q0 <= i < q1 and k0 <= j < k1 and low <= j - i <= high
    np.testing.assert_array_equal(row_intervals(slices, rows).allowed(keys), expected)
