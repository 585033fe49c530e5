"""Gradients on simulated rings: judged by the wide formula and by differences, counted as integers, on every path."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringmpi.passes.backward_pass
from ringmpi import Mask, Sharding, attention, attention_backward
from ringmpi.core.scoring import Scoring
from ringmpi.errors import BackendError, ShapeError
from tests.dense import dense_attention_backward
from tests.differences import attention_differences
from tests.strategies import RANKS, rings
from tests.tolerances import assert_derivative, assert_gradients

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
SCHEDULES = ["ring", "bidirectional", "all-gather"]
WAYS = ["keys", "queries"]
HEADS = st.sampled_from([(1, 1), (2, 1), (4, 2), (28, 7), (6, 3), (5, 1), (3, 3)])
SINKS = np.array([0.5, -np.inf, 3.0, -2.0])
SLOPES = np.array([0.5, 0.25, 0.125, 0.0])


def normal(seed, *shape, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def problem(query_length, key_length, heads=(4, 2), head_dim=8, value_dim=8, dtype=np.float64):
    """grad_output, q, k, v."""
    return (
        normal(4, heads[0], query_length, value_dim, dtype=dtype),
        normal(1, heads[0], query_length, head_dim, dtype=dtype),
        normal(2, heads[1], key_length, head_dim, dtype=dtype),
        normal(3, heads[1], key_length, value_dim, dtype=dtype),
    )


def gradients(arrays, *, travel="auto", grad_log_sum_exp=None, **options):
    """Forward, then backward."""
    out = attention(*arrays[1:], **options)
    return attention_backward(*arrays, out, travel=travel, grad_log_sum_exp=grad_log_sum_exp, **options)


def judge(found, arrays, mask, *, grad_log_sum_exp=None, sink_logits=None, **scores):
    """The policy of tests/tolerances.py, for arrays without a batch axis."""
    q, k = arrays[1:3]
    scoring = Scoring(scores.get("scale", q.shape[-1] ** -0.5), scores.get("softcap"), scores.get("alibi_slopes"))
    allowed = mask.allowed(q.shape[-2], k.shape[-2])
    assert found.pairs == allowed.sum() * q.shape[-3]
    assert_gradients(
        (*(array[None] for array in found), found.sink_logits, found.alibi_slopes),
        *(array[None] for array in arrays),
        allowed,
        scoring,
        sink_logits=sink_logits,
        grad_log_sum_exp=None if grad_log_sum_exp is None else grad_log_sum_exp[None],
    )


def assert_same_bits(found, expected):
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == y.dtype
        assert x.tobytes() == y.tobytes()


@given(rings(), st.sampled_from(WAYS), HEADS, st.sampled_from([1, 3, 8]), st.sampled_from([1, 5]))
def test_any_mask_on_any_ring_is_exact(ring, travel, heads, head_dim, value_dim):
    """Classes 14 and 38: any layout, any grouping of heads, against longdouble."""
    arrays = problem(*ring.pop("lengths"), heads, head_dim, value_dim)
    in_order = ring["schedule"] == "broadcast"
    found = gradients(arrays, travel="auto" if in_order else travel, **ring)
    assert found.travel == ("both" if in_order else travel)
    judge(found, arrays, ring["mask"])


@given(rings(), st.sampled_from(WAYS), st.booleans(), st.booleans(), st.booleans(), st.floats(0.1, 2))
def test_any_scores_on_any_ring_are_exact(ring, travel, capped, sunk, sloped, scale):
    arrays = problem(*ring.pop("lengths"), head_dim=4, value_dim=3)
    upstream = normal(5, *arrays[0].shape[:2])
    scores = {"scale": scale, "softcap": 1.5 if capped else None, "alibi_slopes": SLOPES if sloped else None}
    scores["sink_logits"] = SINKS if sunk else None
    travel = "auto" if ring["schedule"] == "broadcast" else travel
    found = gradients(arrays, travel=travel, grad_log_sum_exp=upstream, **ring, **scores)
    judge(found, arrays, ring["mask"], grad_log_sum_exp=upstream, **scores)


@settings(max_examples=10)
@given(RANKS, st.sampled_from(SCHEDULES), st.sampled_from(WAYS), st.sampled_from(["zigzag", "striped", "contiguous"]))
def test_gradients_are_what_central_differences_say(ranks, schedule, travel, sharding):
    """Class 14, without a formula: of q, k, v, sinks and slopes, with a cap, through output and log_sum_exp."""
    arrays = problem(4, 6, (2, 1), 2, 2)
    given_arrays = {"q": arrays[1], "k": arrays[2], "v": arrays[3]}
    heads = {"sink_logits": np.array([0.5, -1.0]), "alibi_slopes": np.array([0.3, 0.1])}
    upstream, mask = normal(5, 2, 4), Mask.causal("end")
    found = gradients(
        arrays,
        travel=travel,
        grad_log_sum_exp=upstream,
        mask=mask,
        ranks=ranks,
        schedule=schedule,
        sharding=sharding,
        scale=0.6,
        softcap=1.5,
        **heads,
    )
    expected = attention_differences(
        arrays[0][None],
        {name: array[None] for name, array in given_arrays.items()} | heads,
        mask.allowed(4, 6),
        Scoring(0.6, 1.5),
        upstream[None],
    )
    for name, array in zip("qkv", found, strict=True):
        assert_derivative(array, expected[name][0])
    assert_derivative(found.sink_logits, expected["sink_logits"])
    assert_derivative(found.alibi_slopes, expected["alibi_slopes"])


@pytest.mark.parametrize("travel", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", [Mask.full(), Mask.window(20, 3) | Mask.sinks(4)], ids=str)
def test_no_dtype_loses_accuracy(dtype, mask, travel):
    """Classes 3 and 5: sums of gradients travel in float32, cast once at home."""
    arrays = problem(65, 65, (2, 1), 16, 16, dtype)
    for ranks in (1, 5):
        judge(gradients(arrays, mask=mask, ranks=ranks, travel=travel), arrays, mask)


@pytest.mark.parametrize("travel", WAYS)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32])
def test_the_error_does_not_grow_from_1_to_32_ranks(dtype, travel):
    """Class 3; and class 5: at most twice the error of one rank, where a cast at every hop gave 2.8 times."""
    arrays = problem(192, 192, (1, 1), 16, 16, dtype)
    allowed = np.ones((192, 192), bool)
    exact = dense_attention_backward(*(x[None] for x in arrays), allowed, Scoring(0.25), dtype=np.float64)
    errors = []
    for ranks in (1, 4, 32):
        found = gradients(arrays, ranks=ranks, sharding="contiguous", travel=travel)
        judge(found, arrays, Mask.full())
        errors.append([np.abs(x.astype("f8") - y[0]).max() for x, y in zip(found, exact, strict=False)])
    assert (np.array(errors) <= 2 * np.array(errors[0])).all()


@pytest.mark.parametrize("travel", WAYS)
@pytest.mark.parametrize("length", [0, 1, 2, 7, 9, 31])
@pytest.mark.parametrize("sharding", ["contiguous", "zigzag", "striped"])
def test_any_length_on_four_ranks(length, sharding, travel):
    """Class 18: odd local lengths, shards without positions."""
    arrays = problem(length, length, (2, 1), 4, 4)
    judge(gradients(arrays, mask=Mask.causal(), ranks=4, sharding=sharding, travel=travel), arrays, Mask.causal())


@pytest.mark.parametrize("travel", WAYS)
@pytest.mark.parametrize("lengths", [(2, 5), (5, 2), (1, 40), (40, 1), (3, 0), (0, 3)])
@pytest.mark.parametrize("offset", [0, "end"])
def test_causal_with_unequal_lengths(lengths, offset, travel):
    """Class 26: top left and bottom right."""
    arrays, mask = problem(*lengths), Mask.causal(offset)
    judge(gradients(arrays, mask=mask, ranks=3, travel=travel), arrays, mask)


@pytest.mark.parametrize("travel", WAYS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("query_lengths", "key_lengths"),
    [
        ([9, 8, 8, 8, 8, 12], [9, 8, 8, 8, 8, 12]),  # class 16
        ([0, 1, 0, 1], [0, 1, 0, 1]),  # class 31
        ([4, 0, 7], [3, 5, 7]),  # class 32: no query
        ([4, 5, 7], [3, 0, 7]),  # class 32: no key
        ([0, 0], [0, 0]),
    ],
)
def test_documents_short_and_empty(query_lengths, key_lengths, schedule, travel):
    """Classes 16, 31 and 32, on more ranks than some have tokens."""
    arrays = problem(sum(query_lengths), sum(key_lengths))
    mask = Mask.documents(query_lengths, key_lengths, within=Mask.causal())
    for ranks in (2, 5):
        found = gradients(arrays, mask=mask, ranks=ranks, schedule=schedule, travel=travel)
        judge(found, arrays, mask)


@pytest.mark.parametrize("travel", WAYS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_rank_of_padding_alone_has_zero_gradients(schedule, travel):
    """Class 30: rows and keys 10 to 19, all of rank 1, see nothing and are seen by none; NaN there stays there."""
    arrays = problem(30, 30)
    for array in arrays[1:]:
        array[:, 10:20] = np.nan
    mask = Mask.documents([10, 10, 10]) & (Mask.keys(0, 10) | Mask.keys(20, 30))
    with np.errstate(invalid="ignore"):
        found = gradients(arrays, mask=mask, ranks=3, sharding="contiguous", schedule=schedule, travel=travel)
    for array in found:
        assert not array[:, 10:20].any()
        assert np.isfinite(array).all()
        assert array[:, :10].all()


@pytest.mark.parametrize("travel", WAYS)
def test_rows_without_keys_have_zero_gradients_whatever_comes_from_above(travel):
    arrays, upstream = problem(10, 4), normal(5, 4, 10)
    options = {"mask": Mask.causal("end"), "ranks": 3, "travel": travel}
    found = gradients(arrays, grad_log_sum_exp=upstream, **options)
    assert not found.query[:, :6].any()
    arrays[0][:, :6], upstream[:, :6] = 1e30, -1e30
    assert_same_bits(gradients(arrays, grad_log_sum_exp=upstream, **options), found)


@pytest.mark.parametrize("travel", WAYS)
def test_a_row_without_keys_between_others_is_zero_too(travel):
    """It lies inside a tile, where its log_sum_exp of -inf must not make NaN of its neighbours' gradients."""
    arrays, mask = problem(9, 9), Mask.slices([(0, 4, 0, 9, -9, 9), (5, 9, 0, 9, -9, 9)])
    for ranks in (1, 2):
        found = gradients(arrays, mask=mask, ranks=ranks, sharding="contiguous", travel=travel)
        assert not found.query[:, 4].any()
        judge(found, arrays, mask)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("travel", WAYS)
def test_remote_contributions_may_be_all_there_is(schedule, travel):
    """Class 74: rows see the keys of other ranks only, and those of one rank far more than the others."""
    arrays, mask = remote(40, 4)
    judge(gradients(arrays, mask=mask, ranks=4, sharding="contiguous", schedule=schedule, travel=travel), arrays, mask)


def remote(length, ranks):
    """Scores favour keys of the rank after next; the mask leaves out the rank's own keys."""
    grad_output, q, k, v = problem(length, length)
    shard = length // ranks
    rank = np.arange(length) // shard
    q[..., :ranks], k[..., :ranks] = 8 * np.eye(ranks)[(rank + 2) % ranks], np.eye(ranks)[rank]
    v *= 1 + 9 * rank[:, None]
    own = [(shard * r, shard * (r + 1)) for r in range(ranks)]
    others = [Mask.slices([(a, b, 0, a, -length, length), (a, b, b, length, -length, length)]) for a, b in own]
    mask = others[0]
    for other in others[1:]:
        mask |= other
    return (grad_output, q, k, v), mask


@pytest.mark.parametrize("travel", WAYS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_ring_that_used_its_own_shard_again_would_be_seen(monkeypatch, schedule, travel):
    """Class 74, the fault itself: hops land, but the kernel gets what the rank had at hop 0. The forward is right."""
    arrays, mask = remote(40, 4)
    original = ringmpi.passes.backward_pass.ring_loop

    def forgetful(itinerary, comm, slots, attend, **options):
        own = itinerary.own

        def stale(piece, payload, poll):
            return attend(piece, slots.payload(own[piece % len(own)]), poll)

        return original(itinerary, comm, slots, stale, **options)

    monkeypatch.setattr(ringmpi.passes.backward_pass, "ring_loop", forgetful)
    found = gradients(arrays, mask=mask, ranks=4, sharding="contiguous", schedule=schedule, travel=travel)
    with pytest.raises(AssertionError, match="gradient of"):
        judge(found, arrays, mask)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("travel", WAYS)
def test_a_lost_sum_would_be_seen(monkeypatch, schedule, travel):
    """What arrives is not added: as where a gradient is read before it has landed."""
    arrays = problem(40, 40)
    monkeypatch.setattr(ringmpi.passes.backward_pass.TwoCargoes, "landed", lambda self, step: None)
    found = gradients(arrays, ranks=4, schedule=schedule, travel=travel)
    with pytest.raises(AssertionError, match="gradient of"):
        judge(found, arrays, Mask.full())


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("travel", WAYS)
def test_memory_that_was_used_before_leaves_no_trace(monkeypatch, schedule, travel):
    """Class 54: all slots begin full of NaN."""
    arrays, mask = problem(41, 37), Mask.causal("end")
    options = {"mask": mask, "ranks": 4, "schedule": schedule, "travel": travel}
    expected = gradients(arrays, **options)
    monkeypatch.setattr("ringmpi.passes.slots.np.empty", lambda shape, dtype: np.full(shape, np.nan, dtype))
    assert_same_bits(gradients(arrays, **options), expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "options",
    [
        {"scale": 0.3},
        {"softcap": 1.5},
        {"sink_logits": SINKS},
        {"alibi_slopes": SLOPES},
        {"scale": 2.0, "softcap": 5.0, "alibi_slopes": np.full(4, 0.1), "sink_logits": np.zeros(4)},
    ],
    ids=lambda options: "+".join(options),
)
def test_every_score_option_is_exact_and_changes_the_result(options, schedule):
    arrays, mask = problem(37, 41), Mask.causal("end")
    found = gradients(arrays, mask=mask, ranks=4, schedule=schedule, **options)
    judge(found, arrays, mask, **options)
    plain = gradients(arrays, mask=mask)
    assert not any(np.allclose(x, y) for x, y in zip(found, plain, strict=True) if x.shape[0] == 4)
    assert (found.sink_logits is None) == ("sink_logits" not in options)
    assert (found.alibi_slopes is None) == ("alibi_slopes" not in options)


def test_the_gradient_of_log_sum_exp_changes_that_of_q_and_k():
    arrays, upstream = problem(20, 20), normal(5, 4, 20)
    with_it, without = gradients(arrays, grad_log_sum_exp=upstream), gradients(arrays)
    assert not np.allclose(with_it.query, without.query)
    assert not np.allclose(with_it.key, without.key)
    np.testing.assert_array_equal(with_it.value, without.value)
    judge(with_it, arrays, Mask.full(), grad_log_sum_exp=upstream)


@pytest.mark.parametrize("travel", WAYS)
def test_a_batch_axis_is_as_many_problems(travel):
    arrays = [np.stack([array, 2 * array, -array]) for array in problem(19, 23)]
    options = {"mask": Mask.causal("end"), "ranks": 3, "travel": travel, "sink_logits": SINKS, "alibi_slopes": SLOPES}
    found = gradients(arrays, **options)
    alone = [gradients([array[n] for array in arrays], **options) for n in range(3)]
    for n in range(3):
        for x, y in zip(found, alone[n], strict=True):
            np.testing.assert_allclose(x[n], y, rtol=0, atol=1e-13)
    np.testing.assert_allclose(found.sink_logits, sum(one.sink_logits for one in alone), rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.alibi_slopes, sum(one.alibi_slopes for one in alone), rtol=0, atol=1e-12)
    assert found.pairs == 3 * alone[0].pairs


LAYOUTS = {
    "reversed": lambda x: np.ascontiguousarray(x[:, ::-1, ::-1])[:, ::-1, ::-1],
    "strided": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "fortran": np.asfortranarray,
    "length first": lambda x: x.transpose(1, 0, 2).copy().transpose(1, 0, 2),
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
}


@pytest.mark.parametrize("travel", WAYS)
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_and_byte_order_do_not_matter(layout, ranks, travel):
    """Class 40: of dO, q, k, v, of what was kept, and of the gradient of log_sum_exp."""
    arrays, upstream = problem(30, 30), normal(5, 4, 30, 1)
    options = {"mask": Mask.causal(), "ranks": ranks}
    out = attention(*arrays[1:], **options)
    expected = attention_backward(*arrays, out, grad_log_sum_exp=upstream[..., 0], travel=travel, **options)
    odd = [LAYOUTS[layout](array) for array in arrays]
    log_sum_exp = LAYOUTS[layout](out.log_sum_exp[..., None])[..., 0]
    kept = replace(out, output=LAYOUTS[layout](out.output), log_sum_exp=log_sum_exp)
    strange = LAYOUTS[layout](upstream)[..., 0]
    assert_same_bits(attention_backward(*odd, kept, grad_log_sum_exp=strange, travel=travel, **options), expected)


@pytest.mark.parametrize("travel", WAYS)
@pytest.mark.parametrize("ranks", [1, 3])
def test_an_expanded_gradient_has_stride_zero(ranks, travel):
    """Class 40: what sum().backward() gives."""
    arrays = problem(30, 30)
    ones = np.broadcast_to(np.float64(1), arrays[0].shape)
    assert ones.strides == (0, 0, 0)
    options = {"mask": Mask.causal(), "ranks": ranks, "travel": travel}
    expected = gradients([np.ones(ones.shape), *arrays[1:]], **options)
    assert_same_bits(gradients([ones, *arrays[1:]], **options), expected)
    assert np.abs(expected.query).max() > 1e-3


def test_inputs_are_never_written():
    arrays, upstream = problem(33, 33), normal(5, 4, 33)
    out = attention(*arrays[1:], ranks=3)
    for array in (*arrays, upstream, out.output, out.log_sum_exp):
        array.flags.writeable = False
    for travel in WAYS:
        attention_backward(*arrays, out, grad_log_sum_exp=upstream, ranks=3, travel=travel)


@pytest.mark.parametrize("travel", WAYS)
@pytest.mark.parametrize("sharding", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("poison", [1e3, np.inf, np.nan])
def test_the_future_does_not_leak_into_the_past(sharding, travel, poison):
    """Under a causal mask: change later keys and values, and earlier rows of dQ stay bitwise equal; change later rows
    of q and dO, and rows of dQ before them do. What may see the change does see it."""
    arrays = problem(40, 40)
    options = {"mask": Mask.causal(), "ranks": 4, "sharding": sharding, "travel": travel}
    expected = gradients(arrays, **options)
    with np.errstate(invalid="ignore"):
        for spoilt in ([2, 3], [0], [1]):
            changed = [array.copy() for array in arrays]
            for n in spoilt:
                changed[n][:, 31:] = poison
            found = gradients(changed, **options)
            assert found.query[:, :31].tobytes() == expected.query[:, :31].tobytes()
            assert not np.isclose(found.query[:, 32:], expected.query[:, 32:]).any()
            assert not np.isclose(found.key[:, :31], expected.key[:, :31]).any()


@pytest.mark.parametrize("travel", WAYS)
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_documents_do_not_see_each_other(travel, poison):
    """Every array of the first document in turn; the others keep every bit, in dQ, dK and dV."""
    lengths = [9, 8, 8, 8, 8, 12]
    arrays, mask = problem(53, 53), Mask.documents(lengths, within=Mask.causal())
    expected = gradients(arrays, mask=mask, ranks=2, travel=travel)
    with np.errstate(invalid="ignore"):
        for n in range(4):
            changed = [array.copy() for array in arrays]
            changed[n][:, :9] = poison
            found = gradients(changed, mask=mask, ranks=2, travel=travel)
            assert_same_bits([x[:, 9:] for x in found], [x[:, 9:] for x in expected])
            assert np.isnan(found.query[:, 1:9]).all()


def test_two_head_maps_in_one_process_do_not_mix():
    """Class 39: nothing of one model is kept for the next."""
    first, second = problem(31, 31, (4, 4)), problem(31, 31, (6, 3))
    alone = [gradients(arrays, ranks=3) for arrays in (first, second)]
    for _ in range(2):
        for arrays, expected in zip((first, second), alone, strict=True):
            assert_same_bits(gradients(arrays, ranks=3), expected)


@pytest.mark.parametrize("travel", WAYS)
def test_thirty_runs_are_bitwise_equal(travel):
    """Class 45."""
    arrays = problem(30, 30, dtype=np.float32)
    first = gradients(arrays, mask=Mask.causal(), ranks=3, travel=travel)
    for _ in range(29):
        assert_same_bits(gradients(arrays, mask=Mask.causal(), ranks=3, travel=travel), first)


DO, Q, K, V = problem(6, 6)
OUT = attention(Q, K, V)


def backward(grad_output=DO, out=OUT, **options):
    return attention_backward(grad_output, options.pop("q", Q), K, V, out, **options)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: backward(DO.tolist()), ShapeError, "grad_output is a list; this version takes NumPy arrays"),
        (lambda: backward(DO.astype(int)), ShapeError, "grad_output has dtype int64"),
        (lambda: backward(DO[:, :5]), ShapeError, r"grad_output has shape \(4, 5, 8\); expected \(4, 6, 8\)"),
        (lambda: backward(DO[None]), ShapeError, r"grad_output has shape \(1, 4, 6, 8\)"),
        (lambda: backward(DO[:2]), ShapeError, r"grad_output has shape \(2, 6, 8\)"),
        (lambda: backward(DO[..., :1]), ShapeError, r"grad_output has shape \(4, 6, 1\)"),
        (
            lambda: backward(out=replace(OUT, output=OUT.output[:, :1])),
            ShapeError,
            r"out.output has shape \(4, 1, 8\); expected \(4, 6, 8\)",
        ),
        (
            lambda: backward(out=replace(OUT, log_sum_exp=OUT.log_sum_exp.T)),
            ShapeError,
            r"out.log_sum_exp has shape \(6, 4\); expected \(4, 6\)",
        ),
        (
            lambda: backward(grad_log_sum_exp=np.zeros((4, 1))),
            ShapeError,
            r"grad_log_sum_exp has shape \(4, 1\); expected \(4, 6\)",
        ),
        (lambda: backward(q=Q[:3]), ShapeError, "3 query heads do not divide"),
        (
            lambda: backward(travel="values"),
            ShapeError,
            "travel 'values' is unknown; choose one of auto, keys, queries",
        ),
        (lambda: backward(schedule="tree"), ShapeError, "choose one of ring"),
        (lambda: backward(backend="torch"), BackendError, 'choose one of "auto", "native", "numpy", "cuda"'),
        (lambda: backward(ranks=2, sharding=Sharding.zigzag(6, 3)), ShapeError, "made for 3 ranks, but ranks = 2"),
        (lambda: backward(sink_logits=[0.0]), ShapeError, r"sink_logits has shape \(1,\)"),
    ],
)
def test_what_cannot_be_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("option", ["window_size", "causal", "deterministic"])
def test_no_keyword_is_accepted_and_ignored(option):
    with pytest.raises(TypeError, match=option):
        backward(**{option: 1})


@pytest.mark.parametrize(
    "other",
    [
        {"mask": Mask.full()},
        {"scale": 0.7},
        {"softcap": 3.0},
        {"dropout": 0.5},
        {"sink_logits": np.zeros(4)},
        {"alibi_slopes": np.full(4, 0.1)},
    ],
    ids=lambda other: next(iter(other)),
)
def test_options_other_than_those_of_the_forward_call_are_refused(other):
    """Gradients of something else would look like gradients; layout and rank count may differ."""
    arrays = problem(12, 12)
    options = {"mask": Mask.causal()}
    out = attention(*arrays[1:], **options)
    attention_backward(*arrays, out, **options, ranks=3, sharding="striped", schedule="all-gather")
    with pytest.raises(ShapeError, match="give the backward call the options of the forward call"):
        attention_backward(*arrays, out, **(options | other))
