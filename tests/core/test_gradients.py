"""The formula of the gradients, which judges all others, is itself judged by central differences."""

import numpy as np
import pytest

from ringmpi import Mask
from ringmpi.core.dtypes import bfloat16
from ringmpi.core.gradients import delta_of, sink_gradient
from ringmpi.core.reference import KeySlab, dense_attention
from ringmpi.core.reference_backward import RowSlab, key_gradients, query_gradients
from ringmpi.core.scoring import Scoring
from tests.dense import DenseGradients, dense_attention_backward
from tests.differences import attention_differences, slope
from tests.tolerances import assert_derivative

PLAIN = Scoring(0.5)
SLOPES = np.array([0.5, 0.25, 0.125, 0.0])
SINKS = np.array([0.5, -1.0, 2.0, 0.0])
NAMES = ("q", "k", "v", "sink_logits", "alibi_slopes")


def inputs(rng, queries=5, keys=7, key_heads=2):
    """grad_output, q, k, v: two batches, four query heads, value_dim unlike head_dim."""
    shapes = (2, 4, queries, 2), (2, 4, queries, 3), (2, key_heads, keys, 3), (2, key_heads, keys, 2)
    return [rng.standard_normal(shape) for shape in shapes]


def assert_by_differences(found, grad_output, given, allowed, scoring, grad_log_sum_exp=None):
    expected = attention_differences(grad_output, given, allowed, scoring, grad_log_sum_exp)
    for name, array in zip(NAMES, found, strict=True):
        if name in expected:
            assert_derivative(array, expected[name])


@pytest.mark.parametrize("mask", [Mask.full(), Mask.causal(), Mask.causal("end"), Mask.window(1, 1)], ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"softcap": 1.5}, {"alibi_slopes": SLOPES}, {"softcap": 0.7, "alibi_slopes": SLOPES, "sink_logits": SINKS}],
    ids=lambda options: "+".join(options) or "plain",
)
def test_the_formula_is_the_derivative(rng, mask, options):
    grad_output, q, k, v = inputs(rng)
    scoring = Scoring(0.6, options.get("softcap"), options.get("alibi_slopes"))
    upstream, allowed = rng.standard_normal((2, 4, 5)), mask.allowed(5, 7)
    sinks = options.get("sink_logits")
    found = dense_attention_backward(
        *(grad_output, q, k, v, allowed, scoring), sink_logits=sinks, grad_log_sum_exp=upstream, dtype=np.longdouble
    )
    given = {"q": q, "k": k, "v": v} | {name: options[name] for name in NAMES if name in options}
    assert_by_differences(found, grad_output, given, allowed, scoring, upstream)


def test_differences_see_a_wrong_derivative():
    """The means by which the formula is judged: sin is differentiated to its last digits, 1e-12 more is seen."""
    found = np.array([slope(np.sin, np.longdouble(x)) for x in range(5)])
    right = np.cos(np.arange(5, dtype=np.longdouble))
    assert_derivative(right, found)
    with pytest.raises(AssertionError, match="differs from central differences"):
        assert_derivative(right + 1e-10, found)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_grouped_heads_add_up_to_their_key_head(rng, key_heads):
    grad_output, q, k, v = inputs(rng, key_heads=key_heads)
    allowed, group = Mask.causal("end").allowed(5, 7), 4 // key_heads
    found = dense_attention_backward(grad_output, q, k, v, allowed, PLAIN, dtype=np.float64)
    for head in range(4):
        one = [x[:, head : head + 1] for x in (grad_output, q)]
        mine = [x[:, head // group : head // group + 1] for x in (k, v)]
        alone = dense_attention_backward(*one, *mine, allowed, PLAIN, dtype=np.float64)
        np.testing.assert_allclose(found.query[:, head], alone.query[:, 0], rtol=0, atol=1e-14)
        found.key[:, head // group] -= alone.key[:, 0]
        found.value[:, head // group] -= alone.value[:, 0]
    assert np.abs(found.key).max() < 1e-13
    assert np.abs(found.value).max() < 1e-13


def test_rows_without_keys_give_and_get_nothing(rng):
    grad_output, q, k, v = inputs(rng, queries=7, keys=5)
    allowed = Mask.causal("end").allowed(7, 5)
    assert not allowed[:2].any()
    upstream = rng.standard_normal((2, 4, 7))
    found = dense_attention_backward(grad_output, q, k, v, allowed, PLAIN, grad_log_sum_exp=upstream, dtype=np.float64)
    rest = dense_attention_backward(
        *(x[:, :, 2:] for x in (grad_output, q)),
        *(k, v, allowed[2:], PLAIN),
        grad_log_sum_exp=upstream[:, :, 2:],
        dtype=np.float64,
    )
    assert not found.query[:, :, :2].any()
    np.testing.assert_allclose(found.key, rest.key, rtol=0, atol=1e-15)
    np.testing.assert_allclose(found.value, rest.value, rtol=0, atol=1e-15)


@pytest.mark.parametrize(("queries", "keys"), [(0, 7), (5, 0), (0, 0)])
def test_no_queries_or_no_keys_have_gradients_of_their_shapes(rng, queries, keys):
    arrays = inputs(rng, queries, keys)
    found = dense_attention_backward(*arrays, np.ones((queries, keys), bool), PLAIN, dtype=np.float64)
    assert [x.shape for x in found[:3]] == [x.shape for x in arrays[1:]]
    assert not any(x.any() for x in found)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.longdouble])
def test_arithmetic_is_in_the_dtype_asked_for(rng, dtype):
    arrays = [x.astype(bfloat16) for x in inputs(rng)]
    scoring = Scoring(0.5, 2.0, SLOPES)
    found = dense_attention_backward(*arrays, np.ones((5, 7), bool), scoring, sink_logits=SINKS, dtype=dtype)
    assert [x.dtype for x in found] == [dtype] * 5


def test_delta_is_taken_from_the_output_that_was_kept(rng):
    arrays, allowed = inputs(rng), np.ones((5, 7), bool)
    output, _ = dense_attention(*arrays[1:], allowed, PLAIN, dtype=np.float64)
    own = dense_attention_backward(*arrays, allowed, PLAIN, dtype=np.float64)
    kept = dense_attention_backward(*arrays, allowed, PLAIN, output=output, dtype=np.float64)
    rounded = dense_attention_backward(*arrays, allowed, PLAIN, output=output.astype(bfloat16), dtype=np.float64)
    np.testing.assert_allclose(kept.query, own.query, rtol=0, atol=1e-15)
    assert np.abs(rounded.query - own.query).max() > 1e-4


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("spoilt", range(4))
def test_what_is_not_finite_reaches_only_pairs_that_see_it(rng, spoilt, value):
    """Row 3, or key 3, of a causal mask: rows before it are not reached from a key, keys after it not from a row."""
    arrays, allowed = inputs(rng), np.tri(5, 7, dtype=bool)
    before = dense_attention_backward(*arrays, allowed, PLAIN, dtype=np.float64)
    arrays[spoilt][:, :, 3, 0] = value
    after = dense_attention_backward(*arrays, allowed, PLAIN, dtype=np.float64)
    row = spoilt < 2
    clean = DenseGradients(np.arange(5) != 3 if row else np.arange(5) < 3, *[np.arange(7) > 4 - row] * 2, *[True] * 2)
    for old, new, untouched in zip(before[:3], after[:3], clean, strict=False):
        np.testing.assert_allclose(new[:, :, untouched], old[:, :, untouched], rtol=0, atol=1e-15)
        assert np.isfinite(new[:, :, untouched]).all()
    if np.isnan(value) and spoilt != 3:
        for new, untouched in zip(after[: 2 if spoilt == 0 else 3], clean, strict=False):
            assert np.isnan(new[:, :, ~untouched]).any(-1).all()


def test_delta_of_infinite_gradients_warns_of_nothing():
    """inf - inf is NaN, as the formula has it; warnings are errors in these tests."""
    infinite = np.full((1, 1, 2, 3), np.inf, np.float32)
    delta = delta_of(infinite, np.ones_like(infinite), infinite[..., 0], np.dtype(np.float32))
    assert np.isnan(delta).all()


def test_delta_is_the_row_sum_less_the_gradient_of_log_sum_exp(rng):
    grad_output, output, upstream = (rng.standard_normal(shape) for shape in ((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3)))
    expected = (grad_output * output).sum(-1)
    np.testing.assert_allclose(delta_of(grad_output, output, None, np.dtype("f8")), expected, rtol=0, atol=1e-15)
    found = delta_of(grad_output, output, upstream, np.dtype("f8"))
    np.testing.assert_allclose(found, expected - upstream, rtol=0, atol=1e-15)
    halves = grad_output.astype(np.float16), output.astype(np.float16)
    assert delta_of(*halves, None, np.dtype("f4")).dtype == np.float32


def test_a_sink_gets_what_its_share_of_the_rows_says(rng):
    """A row without keys but with a sink: log_sum_exp is the logit itself, so its gradient passes to it whole."""
    delta = rng.standard_normal((1, 2, 3))
    log_sum_exp = np.array([[[0.5, -np.inf, 2.0], [0.5, 1.0, -np.inf]]])
    found = sink_gradient(np.array([0.5, -np.inf]), log_sum_exp, delta)
    assert found.shape == (2,)
    assert found[0] == pytest.approx(-(delta[0, 0, 0] + np.exp(-1.5) * delta[0, 0, 2]), abs=1e-15)
    assert found[1] == 0


@pytest.mark.parametrize("dtype", [np.float64, np.longdouble])
def test_some_rows_and_some_keys_in_slabs_are_those_of_the_whole(rng, dtype):
    """The formula by rows and by keys, the other side in slabs, is the dense one: dropout, softcap, slopes, sinks."""
    q, k, v, grad_output = (
        rng.standard_normal(shape) for shape in ((2, 4, 30, 3), (2, 2, 24, 3), (2, 2, 24, 5), (2, 4, 30, 5))
    )
    scoring = Scoring(0.7, softcap=2.0, alibi_slopes=np.array([0.5, 0.25, 0.0, 1.0]), dropout=0.3, seed=4)
    mask, sinks = Mask.causal() & Mask.window(9, 0) | Mask.sinks(2), np.array([0.5, -np.inf, 1.0, 0.0])
    allowed = mask.allowed(30, 24)
    extra = rng.standard_normal(q.shape[:3])
    options = {"sink_logits": sinks, "grad_log_sum_exp": extra}
    dense = dense_attention_backward(grad_output, q, k, v, allowed, scoring, dtype=dtype, **options)
    output, log_sum_exp = dense_attention(q, k, v, allowed, scoring, sink_logits=sinks, dtype=dtype)
    delta = (grad_output * output).sum(-1) - extra

    def rows(chosen):
        arrays = (array[:, :, chosen].astype(dtype) for array in (q, grad_output, log_sum_exp, delta))
        return [RowSlab(chosen, *arrays)]

    chosen, keys = np.array([0, 3, 4, 17, 29]), np.array([1, 2, 11, 23])
    slabs = [KeySlab(r, allowed[np.ix_(chosen, r)], k[:, :, r], v[:, :, r]) for r in (range(5), range(5, 24))]
    [query] = query_gradients(rows(chosen), slabs, scoring)
    own = KeySlab(keys, allowed[:, keys], k[:, :, keys], v[:, :, keys])
    parts = [(allowed[np.ix_(r, keys)], rows(r)) for r in (np.arange(13), np.arange(13, 30))]
    [(key, value, weight)] = key_gradients(own, parts, scoring, [np.dtype(dtype)])
    for found, whole in (
        (query, dense.query[:, :, chosen]),
        (key, dense.key[:, :, keys]),
        (value, dense.value[:, :, keys]),
    ):
        assert found.dtype == dtype
        assert_derivative(found, whole)
    ones = dense_attention_backward(
        np.ones_like(v[:, [0, 0, 1, 1]][:, :, :1].repeat(30, 2)),
        q,
        k,
        v,
        allowed,
        scoring,
        dtype=dtype,
        sink_logits=sinks,
    )
    assert_derivative(weight, ones.value[:, :, keys, 0])
