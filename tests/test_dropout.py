"""Dropout: which pairs are dropped is a function of the pair alone, and both passes are exact for what is left."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringmpi import Mask, Sharding, attention, attention_backward, attention_reference
from ringmpi.backends.numpy.attend import NumpyBackend
from ringmpi.core.dropout import keep_four
from ringmpi.core.dtypes import wide_dtype
from ringmpi.core.problem import pose_problem
from ringmpi.core.reference import KeySlab, attend_rows, dense_attention, drop_factors
from ringmpi.core.scoring import Scoring
from ringmpi.errors import ShapeError
from tests.backends.meetings import meetings
from tests.core.plain_philox import plain_kept, plain_philox
from tests.dense import dense_attention_backward
from tests.differences import differences
from tests.strategies import rings
from tests.tolerances import assert_attention, assert_derivative, assert_gradients

SEED = 0x123456789ABCDEF  # both words of the key
DROPPED = st.sampled_from([0.1, 0.5, 0.9])
EVERYTHING = {
    "softcap": 3.0,
    "sink_logits": np.array([0.5, -1.0, 2.0, -np.inf]),
    "alibi_slopes": np.array([0.5, 0.25, 0.125, 0.0]),
}


def inputs(queries, keys, *, heads=(4, 2), dims=(8, 8), dtype=np.float64):
    """Two batches."""
    rng = np.random.default_rng(11)
    shapes = (heads[0], queries, dims[0]), (heads[1], keys, dims[0]), (heads[1], keys, dims[1])
    return [rng.standard_normal((2, *shape)).astype(dtype) for shape in shapes]


def kept_by_reference(scoring, shape):
    return drop_factors(np.empty(shape), np.arange(shape[2]), range(shape[3]), scoring) != 0


def seen_pairs(output, keys):
    """Which pairs an output of one-hot values holds: [batch, heads, queries, keys]."""
    return output[..., :keys] != 0


@pytest.mark.parametrize("dropout", [0.1, 0.5, 1 - 2**-20, 2**-33])
def test_the_judge_drops_the_pairs_of_the_definition(dropout):
    shape = (2, 3, 5, 13)
    kept = kept_by_reference(Scoring(1.0, dropout=dropout, seed=SEED), shape)
    assert (kept == plain_kept(dropout, SEED, shape)).all()


@pytest.mark.parametrize("lane", range(4))
def test_a_pair_is_kept_from_its_word_on(lane):
    """Integers are compared: from word / 2^32 up to the next such number the pair is kept, and there it is dropped."""
    word = plain_philox((3, 5, 1, 2), (7, 0))[lane]
    for dropped, kept in ((0, True), (0.75, True), (1, False)):
        scoring = Scoring(1.0, dropout=(word + dropped) / 2**32, seed=7)
        assert keep_four(scoring, *map(np.array, (3, 5, 1, 2)))[lane] == kept


@given(rings(), DROPPED, st.sampled_from([0, 7, SEED, 2**64 - 1]))
def test_every_ring_drops_the_same_pairs(ring, dropout, seed):
    """q = 0 and one-hot values: the output holds exactly the pairs kept, each 1 / (1 - dropout) of its share."""
    queries, keys = ring.pop("lengths")
    q, k, _ = inputs(queries, keys)
    v = np.broadcast_to(np.eye(keys, max(keys, 1)), (2, 2, keys, max(keys, 1)))
    found = attention(0 * q, k, v, dropout=dropout, seed=seed, **ring)
    allowed = ring["mask"].allowed(queries, keys)
    kept = allowed & kept_by_reference(Scoring(1.0, dropout=dropout, seed=seed), (2, 4, queries, keys))
    assert (seen_pairs(found.output, keys) == kept).all()
    share = found.output[..., :keys] * (1 - dropout) * allowed.sum(1)[:, None]
    np.testing.assert_allclose(share, kept, rtol=0, atol=1e-13)


@given(meetings(), st.sampled_from([(3, 5), (8, 4), (256, 1024)]), st.sampled_from([(1, 1), (2, 3), (3, 1)]))
def test_tiles_do_not_change_what_is_dropped(meeting, tile, heads):
    key_heads, group = heads
    rows, keys = meeting.allowed.shape
    scoring = Scoring(1.0, dropout=0.5, seed=SEED)
    backend = NumpyBackend(tile_rows=tile[0], tile_keys=tile[1])
    q, k = np.zeros((2, key_heads * group, rows, 1)), np.zeros((2, key_heads, keys, 1))
    v = np.broadcast_to(np.eye(keys, max(keys, 1)), (2, key_heads, keys, max(keys, 1)))
    partial, pairs = backend.attend(q, k, v, meeting.work, scoring)
    whole = kept_by_reference(scoring, (2, key_heads * group, 41, 41))
    kept = meeting.allowed & whole[:, :, meeting.rows][..., meeting.keys]
    assert (seen_pairs(partial.weighted_sum, keys) == kept).all()
    assert (partial.row_sum == meeting.allowed.sum(1)).all()
    assert pairs == meeting.allowed.sum() * 2 * key_heads * group


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("mask", [Mask.full(), Mask.causal(), Mask.window(20, 3) | Mask.sinks(4)], ids=str)
def test_attention_is_exact_for_the_pairs_kept(mask, dtype):
    q, k, v = inputs(65, 65, dtype=dtype)
    scoring = Scoring(8**-0.5, 3.0, EVERYTHING["alibi_slopes"], dropout=0.3, seed=SEED)
    for ranks, sharding in ((1, "contiguous"), (3, "zigzag"), (4, "striped")):
        found = attention(q, k, v, mask=mask, ranks=ranks, sharding=sharding, dropout=0.3, seed=SEED, **EVERYTHING)
        sinks = EVERYTHING["sink_logits"]
        assert_attention((found.output, found.log_sum_exp), q, k, v, mask.allowed(65, 65), scoring, sink_logits=sinks)


def test_the_judge_is_the_formula_with_the_pairs_of_the_definition():
    q, k, v = inputs(6, 9, heads=(2, 2))
    found = attention_reference(q, k, v, scale=0.5, dropout=0.4, seed=SEED)
    weights = np.exp(0.5 * q @ k.swapaxes(-1, -2))
    kept = plain_kept(0.4, SEED, (2, 2, 6, 9))
    expected = (weights * kept / 0.6) @ v / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(found.output.astype(float), expected, rtol=0, atol=1e-14)
    assert found.output.dtype == wide_dtype(q.dtype)


def test_slabs_of_keys_do_not_change_what_the_judge_drops():
    q, k, v = inputs(7, 30)
    scoring, wide = Scoring(0.5, dropout=0.3, seed=SEED), np.dtype(np.float64)
    rows, allowed = np.array([1, 2, 5]), Mask.causal("end").allowed(7, 30)
    cuts = (range(3), range(3, 14), range(14, 30))
    slabs = [KeySlab(s, allowed[rows][:, s], k[:, :, s], v[:, :, s]) for s in cuts]
    [(output, _)] = attend_rows(q[:, :, rows], rows, slabs, scoring, dtypes=[wide])
    expected, _ = dense_attention(q, k, v, allowed, scoring, dtype=wide)
    np.testing.assert_allclose(output, expected[:, :, rows], rtol=0, atol=1e-14)


def test_log_sum_exp_is_that_without_dropout():
    q, k, v = inputs(40, 40, dtype=np.float32)
    plain, dropped = (attention(q, k, v, ranks=3, dropout=p, **EVERYTHING) for p in (0.0, 0.5))
    assert dropped.log_sum_exp.tobytes() == plain.log_sum_exp.tobytes()
    assert (dropped.output != plain.output).any()


def test_no_dropout_changes_no_bit():
    q, k, v = inputs(40, 40, dtype=np.float32)
    plain, seeded = attention(q, k, v, ranks=3), attention(q, k, v, ranks=3, dropout=0.0, seed=SEED)
    assert seeded.output.tobytes() == plain.output.tobytes()
    grads = attention_backward(v.repeat(2, 1), q, k, v, plain, ranks=3)
    seeded_grads = attention_backward(v.repeat(2, 1), q, k, v, plain, ranks=3, dropout=0.0, seed=SEED)
    assert [x.tobytes() for x in seeded_grads] == [x.tobytes() for x in grads]


@settings(max_examples=25)
@given(rings(), DROPPED, st.sampled_from(["keys", "queries"]))
def test_gradients_are_exact_on_every_ring(ring, dropout, travel):
    queries, keys = ring.pop("lengths")
    q, k, v = inputs(queries, keys, dims=(3, 5))
    everything = ring | EVERYTHING | {"scale": 0.6, "dropout": dropout, "seed": SEED}
    grad_output, upstream = inputs(queries, keys, dims=(5, 1))[0], inputs(queries, keys, dims=(1, 1))[0][..., 0]
    out = attention(q, k, v, **everything)
    travel = "auto" if ring["schedule"] == "broadcast" else travel
    found = attention_backward(grad_output, q, k, v, out, grad_log_sum_exp=upstream, travel=travel, **everything)
    scoring = Scoring(0.6, 3.0, EVERYTHING["alibi_slopes"], dropout=dropout, seed=SEED)
    assert_gradients(
        (*found, found.sink_logits, found.alibi_slopes),
        *(grad_output, q, k, v, ring["mask"].allowed(queries, keys), scoring),
        sink_logits=EVERYTHING["sink_logits"],
        grad_log_sum_exp=upstream,
    )


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_gradients_are_exact_in_narrow_dtypes(dtype):
    q, k, v = inputs(65, 65, dtype=dtype)
    grad_output = inputs(65, 65, dtype=dtype)[0][..., ::-1]
    options = {"mask": Mask.causal(), "ranks": 4, "dropout": 0.3, "seed": SEED}
    found = attention_backward(grad_output, q, k, v, attention(q, k, v, **options), **options)
    scoring = Scoring(8**-0.5, dropout=0.3, seed=SEED)
    assert_gradients((*found, None, None), grad_output, q, k, v, Mask.causal().allowed(65, 65), scoring)


def test_the_judge_of_gradients_is_the_derivative_with_dropout():
    q, k, v = inputs(5, 7, dims=(3, 2))
    grad_output = inputs(5, 7, dims=(2, 2))[0]
    allowed, scoring = Mask.causal("end").allowed(5, 7), Scoring(0.6, 1.5, dropout=0.4, seed=SEED)
    found = dense_attention_backward(grad_output, q, k, v, allowed, scoring, dtype=np.longdouble)
    given_arrays = {"query": q, "key": k, "value": v}

    def scalar(name, changed):
        arrays = (given_arrays | {name: changed}).values()
        return (grad_output * dense_attention(*arrays, allowed, scoring, dtype=np.longdouble)[0]).sum()

    for name, array in given_arrays.items():
        expected = differences(lambda changed, name=name: scalar(name, changed), array)
        assert_derivative(getattr(found, name), expected)
    plain = dense_attention_backward(grad_output, q, k, v, allowed, replace(scoring, dropout=0.0), dtype=np.longdouble)
    assert all(np.abs(a - b).max() > 1e-3 for a, b in zip(found[:3], plain[:3], strict=True))


def test_nan_reaches_the_rows_that_see_it_dropped_or_not():
    """0 x NaN is NaN: dropping is no mask."""
    q, k, v = inputs(40, 40)
    v[0, 1, 17, 2], v[1, 0, 30, 5] = np.nan, np.inf
    mask, scoring = Mask.causal(), Scoring(8**-0.5, dropout=0.5, seed=SEED)
    found = attention(q, k, v, mask=mask, ranks=3, dropout=0.5, seed=SEED)
    assert np.isnan(found.output[0, 2:, 17:, 2]).all()
    assert np.isfinite(found.output[:, :, :17]).all()
    assert_attention((found.output, found.log_sum_exp), q, k, v, mask.allowed(40, 40), scoring)


SHAPE = (4, 4, 128, 256)
PAIRS = int(np.prod(SHAPE))
SIGMAS = 4.5  # for about 900 figures; the seeds are fixed, so they are the same in every run


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_as_many_pairs_are_dropped_as_asked_everywhere(dropout):
    kept = kept_by_reference(Scoring(1.0, dropout=dropout, seed=5), SHAPE)
    deviation = (kept - (1 - dropout)) / np.sqrt(dropout * (1 - dropout))  # mean 0, variance 1
    assert abs(deviation.sum()) < SIGMAS * np.sqrt(PAIRS)
    for axis in range(4):
        sums = deviation.sum(tuple({0, 1, 2, 3} - {axis})) / np.sqrt(PAIRS / SHAPE[axis])
        assert np.abs(sums).max() < SIGMAS
        assert abs(np.square(sums).mean() - 1) < SIGMAS * np.sqrt(2 / SHAPE[axis])


@pytest.mark.parametrize("seed", [5, 5 << 32])
def test_batches_heads_positions_and_seeds_are_independent(seed):
    def drawn(seed):
        return np.where(kept_by_reference(Scoring(1.0, dropout=0.5, seed=seed), SHAPE), 1.0, -1.0)

    first = drawn(seed)
    shifted = [np.roll(first, shift, axis) for axis in range(4) for shift in (1, 2, 3, 4) if shift < SHAPE[axis]]
    others = [drawn(seed + 1), drawn(seed + (1 << 32)), drawn(seed ^ 0xFFFFFFFF)]
    for other in (*shifted, *others):
        assert abs((first * other).sum()) < SIGMAS * np.sqrt(PAIRS)
    for swapped in (np.moveaxis(first[..., : SHAPE[2]], (2, 3), (0, 1)), first):
        upper = np.triu_indices(len(swapped), 1)
        products = swapped[upper] * swapped[upper[::-1]]
        assert abs(products.sum()) < SIGMAS * np.sqrt(products.size)


def test_the_mean_over_seeds_is_attention_without_dropout():
    q, k, v = inputs(4, 12)
    outputs = np.stack([attention(q, k, v, dropout=0.5, seed=seed).output for seed in range(200)])
    error = outputs.mean(0) - attention(q, k, v).output
    assert np.abs(error / (outputs.std(0) / np.sqrt(200))).max() < SIGMAS


class Shape:
    """An array too long to be made."""

    def __init__(self, length):
        self.shape, self.dtype = (1, length, 8), np.dtype(np.float32)


def pose(length, **scores):
    sharding = Sharding.contiguous(length, 1)
    arrays = [Shape(length)] * 3
    return pose_problem(arrays, mask=Mask.window(5, 0), queries=sharding, keys=sharding, **scores)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({"dropout": 1.0}, "dropout is 1.0; it must be at least 0 and below 1"),
        ({"dropout": -0.1}, "dropout is -0.1; it must be"),
        ({"dropout": np.nan}, "dropout is nan; it must be"),
        ({"seed": -1}, "seed is -1; it must be a whole number from 0 to 18446744073709551615"),
        ({"seed": 2**64}, "seed is 18446744073709551616; it must be"),
        ({"seed": 1.5}, "seed is 1.5; it must be"),
        ({"seed": "one"}, "seed is 'one'; it must be"),
    ],
)
def test_what_cannot_be_drawn_is_refused(scores, message):
    with pytest.raises(ShapeError, match=message):
        pose(8, **scores)
    q, k, v = inputs(3, 3)
    out = attention(q, k, v)
    for call in (attention, attention_reference):
        with pytest.raises(ShapeError, match=message):
            call(q, k, v, **scores)
    with pytest.raises(ShapeError, match=message):
        attention_backward(out.output, q, k, v, out, **scores)


def test_dropout_beyond_its_counters_is_refused():
    with pytest.raises(ShapeError, match="4,294,967,297 positions; the random numbers of dropout reach 4,294,967,296"):
        pose(2**32 + 1, dropout=0.1)
    assert pose(2**32, dropout=0.1).scoring.dropout == 0.1
    assert pose(2**32 + 1).scoring.dropout == 0


def test_a_numpy_seed_is_a_seed():
    assert pose(8, dropout=0.1, seed=np.int64(3)).fingerprint() == pose(8, dropout=0.1, seed=3).fingerprint()


def test_dropout_and_seed_belong_to_the_problem_that_ranks_agree_on():
    scores = [{}, {"dropout": 0.1}, {"dropout": 0.2}, {"dropout": 0.1, "seed": 1}, {"dropout": 0.1, "seed": 1 << 32}]
    assert len({pose(8, **each).fingerprint() for each in scores}) == len(scores)
