"""The NumPy backend against the plain formula, by counts, and by bits where bits must not change."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi import Mask
from ringmpi.backends.numpy.attend import NumpyBackend
from ringmpi.core.dtypes import SUPPORTED, bfloat16
from ringmpi.core.partial import Partial, empty_partial
from ringmpi.core.scoring import Scoring
from ringmpi.core.shapes import HeadShape
from ringmpi.core.work import NO_WORK, count_pairs, cut, meet
from ringmpi.errors import ShapeError
from tests.backends.dense import arrays, assert_attended, inputs
from tests.backends.meetings import Meeting, backends, meet_all, meetings, rngs
from tests.cuda.emulated import EMULATED

HEADS = st.tuples(*[st.integers(1, n) for n in (2, 3, 3, 5, 5)])
PLAIN = Scoring(0.5)


def square(mask, length):
    return meet_all(mask, (length, length), [range(length)], [range(length)])


def copy(partial):
    return Partial(*(x.copy() for x in arrays(partial)))


def assert_same_bits(a, b):
    for x, y in zip(arrays(a), arrays(b), strict=True):
        assert x.dtype == y.dtype
        assert x.tobytes() == y.tobytes()


def scorings(query_heads):
    slopes = st.lists(st.floats(0.01, 1), min_size=query_heads, max_size=query_heads).map(np.array)
    return st.builds(Scoring, st.floats(0.1, 2), st.none() | st.floats(0.5, 5), st.none() | slopes)


@given(st.data(), meetings(), backends, rngs, HEADS, st.sampled_from(["f4", "f8"]))
def test_attention_is_that_of_the_plain_formula(data, meeting, backend, rng, heads, dtype):
    q, k, v = inputs(rng, meeting, heads, dtype)
    scoring = data.draw(scorings(q.shape[1]))
    partial, attended = backend.attend(q, k, v, meeting.work, scoring)
    assert (
        attended
        == count_pairs(meeting.work).sum() * heads[0] * q.shape[1]
        == meeting.allowed.sum() * heads[0] * q.shape[1]
    )
    assert_attended(partial, q, k, v, meeting, scoring)


@given(meetings(), backends, rngs, st.integers(1, 60))
def test_pieces_may_be_carried_in_any_order(meeting, backend, rng, budget):
    q, k, v = inputs(rng, meeting)
    calls = cut(meeting.work, budget)
    carried, attended = empty_partial(1, 2, len(meeting.rows), 4, np.dtype("f4")), 0
    for n in rng.permutation(len(calls)):
        returned, pairs = backend.attend(q, k, v, calls[n], PLAIN, into=carried)
        assert returned is carried
        attended += pairs
    assert attended == 2 * meeting.allowed.sum()
    assert_attended(carried, q, k, v, meeting, PLAIN)


@given(meetings(), backends, rngs)
def test_queries_of_zero_count_their_keys(meeting, backend, rng):
    q, k, v = inputs(rng, meeting)
    partial, _ = backend.attend(np.zeros_like(q), k, v, meeting.work, PLAIN)
    seen = meeting.allowed.sum(1)
    np.testing.assert_array_equal(partial.row_sum, np.broadcast_to(seen, partial.row_sum.shape))
    np.testing.assert_array_equal(partial.row_max[0, 0], np.where(seen, 0, -np.inf))


@given(meetings(), backends, rngs)
def test_one_hot_values_count_keys_by_block(meeting, backend, rng):
    q, k, v = inputs(rng, meeting, (1, 2, 1, 4, 6))
    v[:] = np.eye(6)[np.arange(v.shape[2]) % 6]
    partial, _ = backend.attend(np.zeros_like(q), k, v, meeting.work, PLAIN)
    by_block = np.stack([meeting.allowed[:, n::6].sum(1) for n in range(6)], 1)
    np.testing.assert_array_equal(partial.weighted_sum[0, 1], by_block)


@given(meetings(), backends, rngs)
def test_rows_without_keys_keep_every_bit(meeting, backend, rng):
    q, k, v = inputs(rng, meeting)
    before = backend.attend(q, k, v, meeting.work[::2], PLAIN)[0]
    after = backend.attend(q, k, v, meeting.work[1::2], PLAIN, into=copy(before))[0]
    fresh = backend.attend(q, k, v, meeting.work[1::2], PLAIN)[0]
    rows = np.isneginf(fresh.row_max)
    for x, y in zip(arrays(before), arrays(after), strict=True):
        assert x[rows].tobytes() == y[rows].tobytes()
    assert (fresh.row_sum[rows] == 0).all()
    assert (fresh.weighted_sum[rows] == 0).all()


def test_rows_between_others_that_see_no_key_stay_empty(rng, kernel):
    diagonal = meet_all(Mask.window(0, 0), (60, 60), [range(0, 60, 2)], [range(0, 60, 3)])
    gap = square(Mask.slices([(0, 3, 0, 8, -9, 9), (5, 8, 0, 8, -9, 9)]), 8)
    for meeting in (diagonal, gap):
        q, k, v = inputs(rng, meeting)
        partial, _ = kernel().attend(q, k, v, meeting.work, PLAIN)
        blind = ~meeting.allowed.any(1)
        assert blind.any()
        assert np.isneginf(partial.row_max[:, :, blind]).all()
        assert (partial.row_sum[:, :, blind] == 0).all()
        assert (partial.weighted_sum[:, :, blind] == 0).all()
        assert_attended(partial, q, k, v, meeting, PLAIN)


MASKS = {
    "full": lambda length: Mask.full(),
    "causal": lambda length: Mask.causal(),
    "window": lambda length: Mask.window(100, 0),
    "documents": lambda length: Mask.documents([20] * (length // 20) + [length % 20], within=Mask.causal()),
}


@pytest.mark.parametrize("length", [255, 256, 257, 1023, 1025])
@pytest.mark.parametrize("mask", MASKS)
def test_lengths_around_the_tile_size(rng, kernel, length, mask):
    meeting = square(MASKS[mask](length), length)
    q, k, v = inputs(rng, meeting, (1, 1, 2, 8, 8))
    partial, attended = kernel().attend(q, k, v, meeting.work, PLAIN)
    assert attended == 2 * meeting.allowed.sum()
    assert_attended(partial, q, k, v, meeting, PLAIN)


@pytest.mark.parametrize("dtype", [np.float16, bfloat16], ids=str)
def test_16_bit_inputs_are_accumulated_in_float32(rng, kernel, dtype):
    meeting = square(Mask.causal(), 70)
    q, k, v = inputs(rng, meeting, (2, 2, 2, 8, 8), dtype)
    found, _ = kernel(tile_rows=16, tile_keys=32).attend(q, k, v, meeting.work, PLAIN)
    if kernel().name != "cuda":  # whose products of 16 bit are of another kind
        wide = [x.astype(np.float32) for x in (q, k, v)]
        assert_same_bits(found, kernel(tile_rows=16, tile_keys=32).attend(*wide, meeting.work, PLAIN)[0])
    assert_attended(found, q, k, v, meeting, PLAIN)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_huge_scores_neither_overflow_nor_vanish(rng, kernel, size):
    meeting = square(Mask.causal(), 60)
    q, k, v = inputs(rng, meeting)
    k *= 0.01
    q[..., 0], k[..., 0] = 1, np.linspace(0.5, 1, 60) * size / PLAIN.scale
    partial, _ = kernel(tile_rows=8, tile_keys=16).attend(q, k, v, meeting.work, PLAIN)
    assert np.abs(partial.row_max).max() > 5e3
    assert_attended(partial, q, k, v, meeting, PLAIN)


def test_alibi_distances_are_exact_at_positions_beyond_float32(kernel):
    far = 1 << 40
    rows, keys = range(far, far + 4), range(far + 1, far + 9, 2)
    work = meet(Mask.full().resolve(far + 9, far + 9), rows, keys)
    meeting = Meeting(work, np.array(rows), np.array(keys), np.ones((4, 4), bool))
    q, k, v = inputs(np.random.default_rng(0), meeting)
    scoring = Scoring(0.5, alibi_slopes=np.array([0.5, 0.25]))
    assert_attended(kernel().attend(q, k, v, work, scoring)[0], q, k, v, meeting, scoring)


LAYOUTS = {
    "strided": lambda x: np.repeat(np.repeat(x, 2, 2), 3, 3)[:, :, ::2, ::3],
    "reversed": lambda x: np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1],
    "fortran": np.asfortranarray,
    "length first": lambda x: np.ascontiguousarray(x.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3),
    "broadcast": lambda x: np.broadcast_to(x[:1, :1], x.shape),
    "unaligned": lambda x: np.frombuffer(b"." + x.tobytes(), x.dtype, offset=1).reshape(x.shape),
    "read only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "other byte order": lambda x: x.astype(x.dtype.newbyteorder()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_layout_changes_no_bit(rng, kernel, layout, dtype):
    meeting = square(Mask.causal(), 50)
    odd = [LAYOUTS[layout](x) for x in inputs(rng, meeting, (2, 2, 2, 8, 8), dtype)]
    plain = [np.array(x, dtype, order="C") for x in odd]
    backend = kernel(tile_rows=16, tile_keys=16)
    found, expected = (backend.attend(*x, meeting.work, PLAIN)[0] for x in (odd, plain))
    assert_same_bits(found, expected)


def test_a_carried_partial_may_be_strided(rng, kernel):
    meeting = square(Mask.causal(), 50)
    q, k, v = inputs(rng, meeting)
    expected, _ = kernel().attend(q, k, v, meeting.work, PLAIN)
    outer = empty_partial(1, 2, 100, 8, np.dtype("f4"))
    inner = Partial(outer.row_max[..., ::2], outer.row_sum[..., ::2], outer.weighted_sum[:, :, ::2, ::2])
    kernel().attend(q, k, v, meeting.work, PLAIN, into=inner)
    assert_same_bits(Partial(*map(np.ascontiguousarray, arrays(inner))), expected)
    assert np.isneginf(outer.row_max[..., 1::2]).all()


@pytest.mark.parametrize(("rows", "keys"), [(0, 5), (5, 0), (0, 0), (5, 5)])
def test_without_work_the_partial_is_empty(rng, kernel, rows, keys):
    meeting = Meeting(NO_WORK, np.arange(rows), np.arange(keys), np.zeros((rows, keys), bool))
    partial, attended = kernel().attend(*inputs(rng, meeting), meeting.work, PLAIN)
    assert attended == 0
    assert_same_bits(partial, empty_partial(1, 2, rows, 4, np.dtype("f4")))


@pytest.mark.parametrize("shape", [(1, 2, 8, 4, "f8"), (1, 2, 9, 4, "f4"), (1, 2, 8, 1, "f4")])
def test_a_partial_of_other_queries_is_refused(rng, kernel, shape):
    meeting = square(Mask.full(), 8)
    other = empty_partial(*shape[:4], np.dtype(shape[4]))
    with pytest.raises(ShapeError, match="carried partial is .* need .* Carry a partial only"):
        kernel().attend(*inputs(rng, meeting), meeting.work, PLAIN, into=other)


@pytest.mark.skipif(EMULATED, reason="of the NumPy backend")
def test_scratch_grows_neither_with_the_length_nor_with_the_heads(rng):
    def peak(length, heads):
        work = square(Mask.full(), length).work
        q = rng.standard_normal((1, heads, length, 4)).astype(np.float16)
        into = empty_partial(1, heads, length, 4, np.dtype("f4"))
        tracemalloc.start()
        NumpyBackend(tile_rows=64, tile_keys=64).attend(q, q, q, work, PLAIN, into=into)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(64, 1)  # what is loaded once is not scratch
    assert peak(2048, 1) < 1.3 * peak(512, 1)
    assert peak(16, 400) < 1.3 * peak(16, 40)


def test_a_call_of_the_budget_is_smaller_for_more_heads_and_longer_ones(kernel):
    single = np.dtype(np.float32)
    budget = kernel().call_budget(HeadShape(1, 8, 8, 64, 64), single)
    assert budget == pytest.approx(2 * kernel().call_budget(HeadShape(2, 8, 2, 64, 64), single), rel=1e-5)
    assert budget > kernel().call_budget(HeadShape(1, 8, 8, 64, 128), single) > 256 * 1024
    assert kernel().call_budget(HeadShape(1 << 30, 1 << 30, 1, 64, 64), single) == 1


def test_a_call_of_the_budget_is_not_larger_for_wider_numbers(kernel):
    budgets = [kernel().call_budget(HeadShape(1, 8, 8, 64, 64), dtype) for dtype in SUPPORTED]
    assert [np.dtype(dtype).itemsize for dtype in SUPPORTED] == [2, 2, 4, 8]
    assert budgets == sorted(budgets, reverse=True)


@pytest.mark.parametrize("heads", [(8, 8), (6, 3), (4, 1)])
def test_the_number_of_threads_changes_no_bit(heads, rng, kernel):
    q, k, v = (rng.standard_normal((1, n, 500, 32), dtype=np.float32) for n in (heads[0], heads[1], heads[1]))
    work = meet(Mask.causal().resolve(500, 500), range(500), range(500))
    alone, pairs = kernel().attend(q, k, v, work, Scoring(0.2))
    for threads in (2, 3, 16):
        shared, pairs_of_threads = kernel(threads=threads).attend(q, k, v, work, Scoring(0.2))
        assert_same_bits(shared, alone)
        assert pairs_of_threads == pairs
