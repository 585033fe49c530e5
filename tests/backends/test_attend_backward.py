"""Gradients by each backend against the plain formula, by counts, and by bits where bits must not change."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ringmpi import Mask
from ringmpi.backends.numpy.attend import NumpyBackend
from ringmpi.core.dtypes import accumulate_dtype, bfloat16
from ringmpi.core.gradients import Gradients, Saved, delta_of
from ringmpi.core.partial import finalize
from ringmpi.core.scoring import Scoring
from ringmpi.core.work import NO_WORK, cut
from tests.backends.dense import inputs
from tests.backends.meetings import Meeting, backends, meet_all, meetings, rngs
from tests.cuda.emulated import EMULATED
from tests.tolerances import assert_gradients

HEADS = st.tuples(*[st.integers(1, n) for n in (2, 3, 3, 5, 5)])
PLAIN = Scoring(0.5)
SPECIAL = [np.nan, np.inf, -np.inf]


def square(mask, length):
    return meet_all(mask, (length, length), [range(length)], [range(length)])


def scorings(query_heads):
    slopes = st.lists(st.floats(0.01, 1), min_size=query_heads, max_size=query_heads).map(np.array)
    return st.builds(
        Scoring,
        st.floats(0.1, 2),
        st.none() | st.floats(0.5, 5),
        st.none() | slopes,
        st.sampled_from([0.0, 0.4]),
        st.just(77),
    )


def upstream(rng, q, v):
    return rng.standard_normal((*q.shape[:3], v.shape[3])).astype(q.dtype)


def kept(backend, arrays, grad_output, meeting, scoring, *, finite=True):
    """What a forward pass over these keys leaves."""
    partial, _ = backend.attend(*arrays, meeting.work, scoring, finite=finite)
    with np.errstate(invalid="ignore", over="ignore"):
        output, log_sum_exp = finalize(partial, arrays[0].dtype)
        return Saved(grad_output, log_sum_exp, delta_of(grad_output, output, None, log_sum_exp.dtype))


def zeros(q, k, v):
    wide = accumulate_dtype(q.dtype)
    return Gradients(*(np.zeros(x.shape, wide) for x in (q, k, v)), slope=np.zeros(q.shape[1], wide))


def parts(gradients):
    return gradients.query, gradients.key, gradients.value, gradients.slope


def backward(backend, arrays, saved, work, scoring=PLAIN, *, finite=True):
    """(gradients, pairs) of one call."""
    into = zeros(*arrays)
    return into, backend.attend_backward(*arrays, saved, work, scoring, into=into, finite=finite)


def assert_same_bits(a, b):
    for x, y in zip(parts(a), parts(b), strict=True):
        assert x.dtype == y.dtype
        assert x.tobytes() == y.tobytes()


def assert_of(found, grad_output, arrays, meeting, scoring):
    """`found` are the gradients over the pairs of a meeting; the formula takes them at their global positions."""
    q, k, v = arrays
    lengths = [int(positions.max(initial=-1)) + 1 for positions in (meeting.rows, meeting.keys)]
    allowed = np.zeros(lengths, bool)
    allowed[np.ix_(meeting.rows, meeting.keys)] = meeting.allowed

    def spread(array, positions, length):
        whole = np.zeros((*array.shape[:2], length, array.shape[3]), array.dtype)
        whole[:, :, positions] = array
        return whole

    rows, keys = (meeting.rows, lengths[0]), (meeting.keys, lengths[1])
    places = (rows, rows, keys, keys)
    spreads = [spread(x, *place) for x, place in zip((grad_output, q, k, v), places, strict=True)]
    sums = [spread(x, *place) for x, place in zip(parts(found)[:3], places[1:], strict=True)]
    slope = found.slope if scoring.alibi_slopes is not None else None
    assert_gradients((*sums, None, slope), *spreads, allowed, scoring)


@given(st.data(), meetings(), backends, rngs, HEADS, st.sampled_from(["f4", "f8"]))
def test_gradients_are_those_of_the_plain_formula(data, meeting, backend, rng, heads, dtype):
    arrays = inputs(rng, meeting, heads, dtype)
    scoring, grad_output = data.draw(scorings(arrays[0].shape[1])), upstream(rng, arrays[0], arrays[2])
    saved = kept(backend, arrays, grad_output, meeting, scoring)
    found, attended = backward(backend, arrays, saved, meeting.work, scoring)
    assert attended == meeting.allowed.sum() * heads[0] * arrays[0].shape[1]
    assert_of(found, grad_output, arrays, meeting, scoring)


@given(st.data(), meetings(), backends, rngs, HEADS, st.sampled_from([None, *SPECIAL]))
def test_values_alone_are_those_of_all(data, meeting, backend, rng, heads, special):
    """What the map pass asks for: weights, without the gradients of scores; dropout and NaN among it."""
    q, k, v = arrays = inputs(rng, meeting, heads)
    if special is not None and q.size:
        q[0, 0, 0] = special
    scoring, grad_output = data.draw(scorings(q.shape[1])), upstream(rng, q, v)
    saved = kept(backend, arrays, grad_output, meeting, scoring, finite=special is None)
    both, alone = zeros(*arrays), replace(zeros(*arrays), query=None, key=None)
    counts = [
        backend.attend_backward(*arrays, saved, meeting.work, scoring, into=into, finite=special is None)
        for into in (both, alone)
    ]
    assert counts[0] == counts[1]
    np.testing.assert_array_equal(alone.value, both.value)
    assert not alone.slope.any()  # a slope has the gradients of scores, and none is made


@given(meetings(), backends, rngs, st.integers(1, 60))
def test_pieces_of_work_add_up_in_any_order(meeting, backend, rng, budget):
    arrays = inputs(rng, meeting)
    grad_output = upstream(rng, arrays[0], arrays[2])
    saved = kept(backend, arrays, grad_output, meeting, PLAIN)
    calls, into, attended = cut(meeting.work, budget), zeros(*arrays), 0
    for n in rng.permutation(len(calls)):
        attended += backend.attend_backward(*arrays, saved, calls[n], PLAIN, into=into)
    assert attended == 2 * meeting.allowed.sum()
    assert_of(into, grad_output, arrays, meeting, PLAIN)


@settings(max_examples=30)
@given(meetings(), backends, rngs)
def test_one_hot_gradients_count_rows_by_block(meeting, backend, rng):
    """With q = 0 and log_sum_exp = 0 every probability is 1: dV counts the rows that see a key, as integers."""
    q, k, v = inputs(rng, meeting, (1, 2, 1, 4, 6))
    grad_output = np.zeros((*q.shape[:3], 6), np.float32)
    grad_output[:] = np.eye(6)[np.arange(q.shape[2]) % 6]
    saved = Saved(grad_output, *np.zeros((2, *q.shape[:3]), np.float32))
    found, _ = backward(backend, (0 * q, k, v), saved, meeting.work)
    by_block = np.stack([meeting.allowed[n::6].sum(0) for n in range(6)], 1)
    np.testing.assert_array_equal(found.value[0, 1], by_block)


@settings(max_examples=30)
@given(meetings(), backends, rngs)
def test_rows_and_keys_that_meet_nothing_keep_every_bit(meeting, backend, rng):
    arrays = inputs(rng, meeting)
    saved = kept(backend, arrays, upstream(rng, arrays[0], arrays[2]), meeting, PLAIN)
    found, _ = backward(backend, arrays, saved, meeting.work)
    assert not found.query[:, :, ~meeting.allowed.any(1)].any()
    assert not found.key[:, :, ~meeting.allowed.any(0)].any()
    assert not found.value[:, :, ~meeting.allowed.any(0)].any()


@pytest.mark.parametrize("length", [191, 257, 1025])
@pytest.mark.parametrize("mask", [Mask.causal(), Mask.window(100, 0)], ids=str)
def test_lengths_around_the_tile_size(rng, kernel, length, mask):
    meeting = square(mask, length)
    arrays = inputs(rng, meeting, (1, 1, 1, 8, 8))
    grad_output = upstream(rng, arrays[0], arrays[2])
    saved = kept(kernel(), arrays, grad_output, meeting, PLAIN)
    found, attended = backward(kernel(), arrays, saved, meeting.work)
    assert attended == meeting.allowed.sum()
    assert_of(found, grad_output, arrays, meeting, PLAIN)


@pytest.mark.parametrize("dtype", [np.float16, bfloat16], ids=str)
def test_16_bit_inputs_are_accumulated_in_float32(rng, kernel, dtype):
    meeting = square(Mask.causal(), 70)
    backend = kernel(tile_rows=16, tile_keys=32)
    arrays = inputs(rng, meeting, (2, 2, 2, 8, 8), dtype)
    grad_output = upstream(rng, arrays[0], arrays[2])
    saved = kept(backend, arrays, grad_output, meeting, PLAIN)
    found, _ = backward(backend, arrays, saved, meeting.work)
    if backend.name == "cuda":  # whose products of 16 bit are of another kind
        narrow = [x.astype(dtype) for x in parts(found)[:3]]
        return assert_of(Gradients(*narrow, found.slope), grad_output, arrays, meeting, PLAIN)
    wide = [x.astype(np.float32) for x in (grad_output, *arrays)]
    expected, _ = backward(backend, wide[1:], Saved(wide[0], saved.log_sum_exp, saved.delta), meeting.work)
    return assert_same_bits(found, expected)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_huge_scores_neither_overflow_nor_vanish(rng, kernel, size):
    meeting = square(Mask.causal(), 60)
    q, k, v = inputs(rng, meeting)
    k *= 0.01
    q[..., 0], k[..., 0] = 1, np.linspace(0.5, 1, 60) * size / PLAIN.scale
    grad_output, backend = upstream(rng, q, v), kernel(tile_rows=8, tile_keys=16)
    saved = kept(backend, (q, k, v), grad_output, meeting, PLAIN)
    found, _ = backward(backend, (q, k, v), saved, meeting.work)
    assert_of(found, grad_output, (q, k, v), meeting, PLAIN)


LAYOUTS = {
    "strided": lambda x: np.repeat(np.repeat(x, 2, 2), 3, 3)[:, :, ::2, ::3],
    "reversed": lambda x: np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1],
    "fortran": np.asfortranarray,
    "length first": lambda x: np.ascontiguousarray(x.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3),
    "broadcast": lambda x: np.broadcast_to(x[:1, :1, :1], x.shape),
    "unaligned": lambda x: np.frombuffer(b"." + x.tobytes(), x.dtype, offset=1).reshape(x.shape),
    "read only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_layout_changes_no_bit(rng, kernel, layout, dtype):
    """Class 40: transposed, strided, reversed and expanded arrays, dO among them."""
    meeting, backend = square(Mask.causal(), 50), kernel(tile_rows=16, tile_keys=16)
    arrays = inputs(rng, meeting, (2, 2, 2, 8, 8), dtype)
    odd = [LAYOUTS[layout](x) for x in (upstream(rng, arrays[0], arrays[2]), *arrays)]
    plain = [np.array(x, dtype, order="C") for x in odd]
    saved = kept(backend, plain[1:], plain[0], meeting, PLAIN)
    expected, _ = backward(backend, plain[1:], saved, meeting.work)
    found, _ = backward(backend, odd[1:], Saved(odd[0], saved.log_sum_exp, saved.delta), meeting.work)
    assert_same_bits(found, expected)


@pytest.mark.parametrize(("rows", "keys"), [(0, 5), (5, 0), (0, 0), (5, 5)])
def test_without_work_nothing_is_added(rng, kernel, rows, keys):
    meeting = Meeting(NO_WORK, np.arange(rows), np.arange(keys), np.zeros((rows, keys), bool))
    arrays = inputs(rng, meeting)
    saved = kept(kernel(), arrays, upstream(rng, arrays[0], arrays[2]), meeting, PLAIN)
    found, attended = backward(kernel(), arrays, saved, NO_WORK)
    assert attended == 0
    assert_same_bits(found, zeros(*arrays))


@pytest.mark.skipif(EMULATED, reason="of the NumPy backend")
def test_scratch_does_not_grow_with_the_length(rng):
    def peak(length):
        work = square(Mask.full(), length).work
        q = rng.standard_normal((1, 1, length, 4)).astype(np.float16)
        saved = Saved(q, *np.ones((2, 1, 1, length), np.float32))
        backend, into = NumpyBackend(tile_rows=64, tile_keys=64), zeros(q, q, q)
        tracemalloc.start()
        backend.attend_backward(q, q, q, saved, work, PLAIN, into=into)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(2048) < 1.3 * peak(512)


@settings(max_examples=30)
@given(meetings(), backends, rngs)
def test_finite_inputs_give_the_same_bits_either_way(meeting, backend, rng):
    arrays = inputs(rng, meeting)
    saved = kept(backend, arrays, upstream(rng, arrays[0], arrays[2]), meeting, PLAIN)
    found = [backward(backend, arrays, saved, meeting.work, finite=finite)[0] for finite in (True, False)]
    assert_same_bits(*found)


def spoil(array, rng, heads, places):
    """NaN and inf at random places of the drawn heads. Returns [heads, positions]: where."""
    spoilt = np.zeros(array.shape[1:3], bool)
    for head in heads:
        for place in places:
            array[0, head, place % array.shape[2], rng.integers(array.shape[3])] = rng.choice(SPECIAL)
            spoilt[head, place % array.shape[2]] = True
    return spoilt


spots = st.tuples(st.sampled_from([[0], [1], [0, 1]]), st.lists(st.integers(0, 40), min_size=1, max_size=4))


@given(meetings(), backends, rngs, st.sampled_from("oqkv"), spots, scorings(2))
def test_what_is_not_finite_reaches_no_bit_that_does_not_see_it(meeting, backend, rng, where, spots, scoring):
    """A spoilt row reaches itself and the keys it sees; a spoilt key also all that the rows that see it see."""
    arrays = inputs(rng, meeting)
    assume(all(meeting.allowed.shape))
    grad_output = upstream(rng, arrays[0], arrays[2])
    clean = kept(backend, arrays, grad_output, meeting, scoring)
    expected, _ = backward(backend, arrays, clean, meeting.work, scoring)
    spoilt = spoil({"o": grad_output, "q": arrays[0], "k": arrays[1], "v": arrays[2]}[where], rng, *spots)
    saved = kept(backend, arrays, grad_output, meeting, scoring, finite=False)
    found, _ = backward(backend, arrays, saved, meeting.work, scoring, finite=False)
    rows = spoilt if where in "oq" else (meeting.allowed @ spoilt.T).T
    keys = (rows @ meeting.allowed) | (spoilt if where in "kv" else False)
    for x, y, hurt in zip(parts(expected)[:3], parts(found)[:3], (rows, keys, keys), strict=True):
        assert x[0][~hurt].tobytes() == y[0][~hurt].tobytes()


@pytest.mark.parametrize(
    "scoring", [PLAIN, Scoring(0.5, 2.0), Scoring(0.5, None, np.ones(2)), Scoring(0.5, None, None, 0.4)]
)
def test_a_nan_key_behind_the_mask_changes_no_bit_of_the_rows_before_it(rng, kernel, scoring):
    meeting = meet_all(Mask.causal(), (20, 20), [range(20)], [range(20)])
    arrays, backend = inputs(rng, meeting), kernel()
    grad_output = upstream(rng, arrays[0], arrays[2])
    expected, _ = backward(backend, arrays, kept(backend, arrays, grad_output, meeting, scoring), meeting.work, scoring)
    arrays[1][:, :, 15] = np.nan
    saved = kept(backend, arrays, grad_output, meeting, scoring, finite=False)
    found, _ = backward(backend, arrays, saved, meeting.work, scoring, finite=False)
    assert found.query[:, :, :15].tobytes() == expected.query[:, :, :15].tobytes()
    assert np.isnan(found.query[:, :, 15:]).all()


@given(meetings(), backends, rngs, st.sampled_from("oqkv"), spots)
def test_nan_reaches_every_pair_that_sees_it(meeting, backend, rng, where, spots):
    arrays = inputs(rng, meeting)
    assume(all(meeting.allowed.shape))
    grad_output = upstream(rng, arrays[0], arrays[2])
    spoilt = np.zeros((2, len(meeting.rows if where in "oq" else meeting.keys)), bool)
    heads, places = spots
    for place in places:
        target = {"o": grad_output, "q": arrays[0], "k": arrays[1], "v": arrays[2]}[where]
        target[0, heads, place % spoilt.shape[1]] = np.nan
        spoilt[heads, place % spoilt.shape[1]] = True
    saved = kept(backend, arrays, grad_output, meeting, PLAIN, finite=False)
    found, _ = backward(backend, arrays, saved, meeting.work, finite=False)
    rows = (spoilt if where in "oq" else (meeting.allowed @ spoilt.T).T) & meeting.allowed.any(1)
    keys = rows @ meeting.allowed
    np.testing.assert_array_equal(np.isnan(found.query[0]).all(-1), rows)
    np.testing.assert_array_equal(np.isnan(found.key[0]).all(-1), keys)
    if where != "v":  # dV = p^T dO: knows nothing of values
        np.testing.assert_array_equal(np.isnan(found.value[0]).all(-1), keys)
