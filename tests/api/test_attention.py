"""Exact attention on simulated rings: counted as integers, judged against the wide formula, on every path."""

import warnings
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi import Mask, Sharding, attention, attention_backward, attention_map, attention_reference
from ringmpi.core.scoring import Scoring
from ringmpi.errors import BackendError, ShapeError
from tests.strategies import rings
from tests.tolerances import assert_attention

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
HEADS = st.sampled_from([(1, 1), (2, 1), (4, 2), (28, 7), (12, 2), (8, 1), (3, 3)])


def normal(seed, *shape, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def qkv(query_length, key_length, heads=(4, 2), head_dim=8, value_dim=8, dtype=np.float64):
    return (
        normal(1, heads[0], query_length, head_dim, dtype=dtype),
        normal(2, heads[1], key_length, head_dim, dtype=dtype),
        normal(3, heads[1], key_length, value_dim, dtype=dtype),
    )


def judge(found, q, k, v, mask, **options):
    """The policy of tests/tolerances.py, for arrays without a batch axis."""
    scale = options.pop("scale", 1 / np.sqrt(q.shape[-1]))
    scoring = Scoring(scale, options.pop("softcap", None), options.pop("alibi_slopes", None))
    allowed = mask.allowed(q.shape[-2], k.shape[-2])
    assert found.pairs == allowed.sum() * q.shape[-3]
    assert_attention(
        (found.output[None], found.log_sum_exp[None]), q[None], k[None], v[None], allowed, scoring, **options
    )


@given(rings(), HEADS, st.sampled_from([1, 3, 8]), st.sampled_from([1, 5]))
def test_any_mask_on_any_ring_is_exact(ring, heads, head_dim, value_dim):
    q, k, v = qkv(*ring.pop("lengths"), heads, head_dim, value_dim)
    judge(attention(q, k, v, **ring), q, k, v, ring["mask"])


@given(rings())
def test_with_equal_scores_the_row_sum_is_the_number_of_keys(ring):
    """q = 0: e^log_sum_exp counts the keys of a row, and one-hot values count them key by key."""
    query_length, key_length = ring.pop("lengths")
    q, k, _ = qkv(query_length, key_length, heads=(1, 1))
    v = np.eye(key_length, max(key_length, 1))[None]
    found = attention(0 * q, k, v, **ring)
    allowed = ring["mask"].allowed(query_length, key_length)
    counts = allowed.sum(1)
    assert (np.rint(np.exp(found.log_sum_exp[0])) == counts).all()
    assert (np.rint(found.output[0, :, :key_length] * counts[:, None]) == allowed).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", [Mask.full(), Mask.causal(), Mask.window(40, 3) | Mask.sinks(4)], ids=str)
def test_no_dtype_loses_accuracy_from_1_to_32_ranks(dtype, mask):
    q, k, v = qkv(193, 193, dtype=dtype, head_dim=16, value_dim=16)
    for ranks in (1, 2, 3, 8, 32):
        judge(attention(q * 3, k, v, mask=mask, ranks=ranks), q * 3, k, v, mask)


def test_the_error_does_not_grow_with_the_ranks():
    q, k, v = qkv(512, 512, dtype=np.float32, head_dim=32, value_dim=32)
    reference = attention_reference(q, k, v).output
    errors = [np.abs(attention(q, k, v, ranks=ranks).output - reference).max() for ranks in (1, 2, 4, 8, 16, 32)]
    assert max(errors) <= 2 * errors[0]


@pytest.mark.parametrize("length", [0, 1, 2, 7, 13, 698])
@pytest.mark.parametrize("sharding", ["contiguous", "zigzag", "striped", "balanced", "auto"])
def test_any_length_on_four_ranks(length, sharding):
    q, k, v = qkv(length, length, heads=(2, 1), head_dim=4)
    judge(attention(q, k, v, mask=Mask.causal(), ranks=4, sharding=sharding), q, k, v, Mask.causal())


@pytest.mark.parametrize(("query_length", "key_length"), [(2, 5), (5, 2), (1, 40), (40, 1), (3, 0), (0, 3)])
@pytest.mark.parametrize("offset", [0, "end", 2])
def test_causal_with_unequal_lengths(query_length, key_length, offset):
    q, k, v = qkv(query_length, key_length)
    mask = Mask.causal(offset)
    judge(attention(q, k, v, mask=mask, ranks=3), q, k, v, mask)


@pytest.mark.parametrize("schedule", ["ring", "bidirectional", "all-gather", "broadcast"])
@pytest.mark.parametrize(
    "options",
    [
        {"scale": 0.3},
        {"softcap": 1.5},
        {"sink_logits": np.array([0.5, -np.inf, 3.0, -2.0])},
        {"alibi_slopes": np.array([0.5, 0.25, 0.125, 0.0])},
        {"scale": 2.0, "softcap": 5.0, "alibi_slopes": np.full(4, 0.1), "sink_logits": np.zeros(4)},
    ],
    ids=lambda options: "+".join(options),
)
def test_every_score_option_is_exact_and_changes_the_result(options, schedule):
    q, k, v = qkv(37, 41)
    mask = Mask.causal("end")
    found = attention(q, k, v, mask=mask, ranks=4, schedule=schedule, **options)
    judge(found, q, k, v, mask, **options)
    assert not np.allclose(found.output, attention(q, k, v, mask=mask).output)
    reference = attention_reference(q, k, v, mask=mask, **options)
    assert np.allclose(found.output, reference.output.astype(float))


def test_a_batch_axis_is_as_many_problems():
    q, k, v = (np.stack([array, 2 * array, -array]) for array in qkv(19, 23))
    found = attention(q, k, v, mask=Mask.causal("end"), ranks=3)
    for n in range(3):
        alone = attention(q[n], k[n], v[n], mask=Mask.causal("end"), ranks=3)
        assert np.allclose(found.output[n], alone.output, rtol=0, atol=1e-14)
    assert found.pairs == 3 * alone.pairs


@pytest.mark.parametrize("ranks", [1, 3])
def test_strides_and_byte_order_do_not_matter(ranks):
    q, k, v = qkv(30, 30)
    expected = attention(q, k, v, mask=Mask.causal(), ranks=ranks)
    reversed_q = np.ascontiguousarray(q[:, ::-1])[:, ::-1]
    every_other_k = np.repeat(k, 2, axis=1)[:, ::2]
    for found in (
        attention(reversed_q, every_other_k, np.asfortranarray(v), mask=Mask.causal(), ranks=ranks),
        attention(*(array.astype(">f8") for array in (q, k, v)), mask=Mask.causal(), ranks=ranks),
        attention(q.transpose(1, 0, 2).copy().transpose(1, 0, 2), k, v, mask=Mask.causal(), ranks=ranks),
    ):
        assert (found.output == expected.output).all()


@pytest.mark.parametrize("sharding", ["contiguous", "zigzag", "striped"])
def test_the_future_does_not_leak_into_the_past(sharding):
    """Change later keys and values: earlier rows stay bitwise equal, even with NaN there."""
    q, k, v = qkv(60, 60)
    expected = attention(q, k, v, mask=Mask.causal(), ranks=4, sharding=sharding).output
    for poison in (1e3, np.inf, np.nan):
        with np.errstate(invalid="ignore"):
            changed_k, changed_v = k.copy(), v.copy()
            changed_k[:, 31:], changed_v[:, 31:] = poison, poison
            found = attention(q, changed_k, changed_v, mask=Mask.causal(), ranks=4, sharding=sharding).output
        assert (found[:, :31] == expected[:, :31]).all()
        assert not np.isclose(found[:, 31:], expected[:, 31:]).any()


def test_documents_do_not_see_each_other():
    lengths = [9, 8, 8, 8, 8, 12]
    q, k, v = qkv(53, 53)
    mask = Mask.documents(lengths, within=Mask.causal())
    expected = attention(q, k, v, mask=mask, ranks=2).output
    v[:, :9] = np.nan
    found = attention(q, k, v, mask=mask, ranks=2).output
    assert (found[:, 9:] == expected[:, 9:]).all()
    assert np.isnan(found[:, :9]).all()


def test_a_merge_across_ranks_survives_any_range_of_scores():
    """Row maxima 90, 1,000 and 10,000 apart between shards, in both orders."""
    for gap in (90.0, 1e3, 1e4):
        for order in (slice(None), slice(None, None, -1)):
            q, k, v = qkv(12, 12, heads=(1, 1), head_dim=4, value_dim=4)
            k = k * np.repeat([0.0, gap], 6)[order][None, :, None]
            judge(attention(q, k, v, ranks=2, sharding="contiguous"), q, k, v, Mask.full())


def test_rows_without_keys_are_zero_with_log_sum_exp_minus_infinity():
    q, k, v = qkv(10, 4)
    found = attention(q, k, v, mask=Mask.causal("end"), ranks=3)
    assert (found.output[:, :6] == 0).all()
    assert np.isneginf(found.log_sum_exp[:, :6]).all()
    assert np.isfinite(found.log_sum_exp[:, 6:]).all()


def test_thirty_runs_are_bitwise_equal():
    q, k, v = qkv(70, 70, dtype=np.float32)
    runs = {attention(q, k, v, mask=Mask.causal(), ranks=3).output.tobytes() for _ in range(30)}
    assert len(runs) == 1


def test_inputs_are_never_written():
    arrays = qkv(33, 33)
    for array in arrays:
        array.flags.writeable = False
    attention(*arrays, ranks=3)


Q, K, V = qkv(6, 6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: attention(Q.tolist(), K, V), ShapeError, "query is a list; this version takes NumPy arrays"),
        (lambda: attention(Q.astype(int), K, V), ShapeError, "query has dtype int64"),
        (lambda: attention(Q.astype("f4"), K, V), ShapeError, "dtypes float32, float64, float64; all must be the same"),
        (lambda: attention(Q[0], K, V), ShapeError, "query has 2 axes"),
        (lambda: attention(Q[None], K, V), ShapeError, "all three need the batch axis"),
        (lambda: attention(Q[:3], K, V), ShapeError, "3 query heads do not divide into groups for 2 key heads"),
        (lambda: attention(Q, K, V[:1]), ShapeError, "key has 2 heads and value 1"),
        (lambda: attention(Q, K, V[:, :3]), ShapeError, "key has length 6 and value 3"),
        (lambda: attention(Q[..., :4], K, V), ShapeError, "query has head_dim 4 and key 8"),
        (lambda: attention(Q, K, V, ranks=0), ShapeError, "ranks = 0; expected a whole number"),
        (lambda: attention(Q, K, V, sharding="zick"), ShapeError, "choose one of contiguous"),
        (lambda: attention(Q, K, V, schedule="tree"), ShapeError, "choose one of ring"),
        (lambda: attention(Q, K, V, backend="torch"), BackendError, 'choose one of "auto", "native", "numpy", "cuda"'),
        (lambda: attention(Q, K, V, scale=np.nan), ShapeError, "scale is nan; it must be finite"),
        (lambda: attention(Q, K, V, scale="0.2"), ShapeError, "scale holds str.*; expected real numbers"),
        (lambda: attention(Q, K, V, scale=True), ShapeError, "scale holds bool; expected real numbers"),
        (lambda: attention(Q, K, V, scale=1j), ShapeError, "scale holds complex128; expected real numbers"),
        (lambda: attention(Q, K, V, scale=10**400), ShapeError, "scale is larger than any float64; it must be finite"),
        (lambda: attention(Q, K, V, scale=[0.2]), ShapeError, r"scale has shape \(1,\); expected one number"),
        (lambda: attention(Q, K, V, dropout=None), ShapeError, "dropout holds NoneType; expected real numbers"),
        (lambda: attention(Q, K, V, softcap=b"9"), ShapeError, "softcap holds bytes.*; expected real numbers"),
        (lambda: attention(Q, K, V, sink_logits=["1"] * 4), ShapeError, "sink_logits holds str.*; expected real"),
        (lambda: attention(Q, K, V, sink_logits=[[1], []]), ShapeError, "sink_logits is a list; expected real"),
        (
            lambda: attention(Q, K, V, alibi_slopes=np.ma.masked_equal([1.0, 2, 3, 4], 2)),
            ShapeError,
            "alibi_slopes is an array with masked elements",
        ),
        (lambda: attention(Q, np.ma.masked_less(K, 0), V), ShapeError, "key is an array with masked elements"),
        (lambda: attention(Q, K, V, softcap=0), ShapeError, "softcap is 0.0; it must be above 0"),
        (lambda: attention(Q, K, V, sink_logits=[0.0]), ShapeError, r"sink_logits has shape \(1,\)"),
        (lambda: attention(Q, K, V, alibi_slopes=0.5), ShapeError, r"alibi_slopes has shape \(\)"),
        (
            lambda: attention(Q, K, V, sharding=Sharding.zigzag(7, 1)),
            ShapeError,
            "query has 6 positions, but its sharding has 7",
        ),
        (
            lambda: attention(Q, K, V, ranks=2, sharding=Sharding.zigzag(6, 3)),
            ShapeError,
            "made for 3 ranks, but ranks = 2",
        ),
        (
            lambda: attention(Q, K, V, sharding=Sharding.zigzag(6, 1), key_sharding=Sharding.zigzag(6, 2)),
            ShapeError,
            "both must use the same number",
        ),
    ],
)
def test_what_cannot_be_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("option", ["window_size", "causal", "is_causal", "deterministic"])
def test_no_keyword_is_accepted_and_ignored(option):
    with pytest.raises(TypeError, match=option):
        attention(Q, K, V, **{option: 1})


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 1e300},
        {"softcap": 1e300},
        {"softcap": 1e-42},
        {"alibi_slopes": [1e300] * 4},
        {"alibi_slopes": [-1e38] * 4},
        {"sink_logits": [1e300] * 4},
    ],
    ids=str,
)
def test_options_that_the_accumulation_dtype_cannot_hold_are_refused(options):
    """They would give NaN from finite input."""
    with pytest.raises(ShapeError, match="scores are float32, which overflows above"):
        attention(Q.astype("f4"), K.astype("f4"), V.astype("f4"), **options)


def test_a_mask_by_name_is_refused_and_ranks_may_be_any_whole_number():
    with pytest.raises(ShapeError, match=r"mask is 'causal'; it must be a Mask, for example Mask.causal\(\)"):
        attention(Q, K, V, mask="causal")
    assert (attention(Q, K, V, ranks=np.int64(2)).output == attention(Q, K, V, ranks=2).output).all()


def test_axes_that_look_swapped_are_doubted_as_a_run_doubts_them():
    """The answer has the shape that is expected, so nobody else would notice. The warning points at the call."""
    x = normal(0, 100, 4, 8)
    with pytest.warns(UserWarning, match="100 query heads, 4 positions, head_dim 8: .* are axes swapped") as told:
        attention(x, x, x)
    assert [warning.filename for warning in told] == [__file__]


@pytest.mark.parametrize("lengths", [(1, 100), (100, 1), (100, 100)])
def test_few_queries_of_many_keys_are_not_doubted(lengths):
    """A token that attends to all before it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention(*qkv(*lengths))


def test_what_is_printed_is_short():
    q, k, v = qkv(7, 9, dtype=np.float32)
    forward = attention(q, k, v)
    assert repr(forward) == "Attention(output=float32 [4, 7, 8], log_sum_exp=float32 [4, 7], pairs=252)"
    assert repr(attention_backward(forward.output, q, k, v, forward)) == (
        "AttentionGradients(query=float32 [4, 7, 8], key=float32 [2, 9, 8], value=float32 [2, 9, 8], travel='keys', "
        "pairs=252)"
    )
    recorded = repr(attention(q, k, v, record=True))
    assert "record=Record(entropy=float32 [4, 7], " in recorded
    assert "top_key=int64 [4, 7]" in recorded
    assert "received=float32 [4, 9]" in repr(attention_map(q, k, forward.log_sum_exp, block=4))


@pytest.mark.parametrize(
    "scale", [Fraction(1, 4), np.float32(0.25), np.array(0.25), ml_dtypes.bfloat16(0.25)], ids=repr
)
def test_a_scale_may_be_a_number_of_any_kind(scale):
    np.testing.assert_array_equal(attention(Q, K, V, scale=scale).output, attention(Q, K, V, scale=0.25).output)


def test_an_array_that_could_be_masked_and_is_not_is_an_array():
    np.testing.assert_array_equal(attention(np.ma.array(Q), K, V).output, attention(Q, K, V).output)
