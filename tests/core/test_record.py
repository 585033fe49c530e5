"""Sums of a record merge as the softmax does, and give what the plain formulas give."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi.core.partial import Partial, empty_partial, finalize_record, merge, sink_partial
from ringmpi.core.record import SUMS, Recording, RecordSums, first_of_largest
from ringmpi.core.scoring import Scoring
from ringmpi.errors import ShapeError
from tests.tolerances import assert_record

ROWS, KEYS, DIM = 5, 12, 3
SEEDS = st.integers(0, 2**32)
DTYPES = st.sampled_from([np.float32, np.float64])
SIZES = st.sampled_from([0.0, 1e-3, 1.0, 30.0])
RECORDING = Recording(3)
UNIT = Scoring(1.0)


def partial_of(q, k, allowed, keys):
    """The partial of some keys, by its definition."""
    s = np.where(allowed, q @ np.swapaxes(k, -1, -2), q.dtype.type(-np.inf))[..., keys]
    row_max = s.max(-1, initial=-np.inf)
    below = s - np.where(np.isneginf(row_max), 0, row_max)[..., None]
    p = np.exp(below)
    distance = np.abs(np.arange(ROWS)[:, None] - keys).astype(q.dtype)
    record = RecordSums(
        (p * np.where(p == 0, 0, below)).sum(-1),
        (p * distance).sum(-1),
        (p * (keys < RECORDING.sinks)).sum(-1),
        np.where(np.isneginf(row_max), -1, keys[s.argmax(-1)] if len(keys) else -1),
        RECORDING.sinks,
    )
    return Partial(row_max, p.sum(-1), np.zeros((*row_max.shape, 1), q.dtype), record)


def draw_inputs(seed, dtype, size=1.0, density=0.4):
    """Arrays [1, 2, length, dim], and a mask in which some rows see no key of a block. Some keys are equal."""
    rng = np.random.default_rng(seed)
    q, k = (size * rng.standard_normal((1, 2, n, DIM)) for n in (ROWS, KEYS))
    k[:, :, rng.integers(KEYS, size=4)] = k[:, :, :1]
    allowed = rng.random((ROWS, KEYS)) < density
    allowed[0] = False
    return q.astype(dtype), k.astype(dtype), allowed


def blocks(q, k, allowed, cuts):
    edges = [0, *sorted(cuts), KEYS]
    return [partial_of(q, k, allowed, np.arange(a, b)) for a, b in zip(edges[:-1], edges[1:], strict=True)]


def bits(partial):
    return tuple(array.tobytes() for array in partial.record.arrays.values())


@given(seed=SEEDS, dtype=DTYPES, size=SIZES, cut=st.integers(0, KEYS))
def test_merge_commutes_bit_by_bit(seed, dtype, size, cut):
    a, b = blocks(*draw_inputs(seed, dtype, size), [cut])
    assert bits(merge(a, b)) == bits(merge(b, a))


@given(seed=SEEDS, dtype=DTYPES, size=SIZES)
def test_merging_with_the_empty_partial_changes_no_bit(seed, dtype, size):
    [a] = blocks(*draw_inputs(seed, dtype, size), [])
    empty = empty_partial(1, 2, ROWS, 1, np.dtype(dtype), recording=RECORDING)
    assert bits(merge(a, empty)) == bits(a) == bits(merge(empty, a))


@given(
    seed=SEEDS,
    dtype=DTYPES,
    size=SIZES,
    cuts=st.sets(st.integers(1, KEYS - 1), min_size=2, max_size=5),
    sinks=st.none() | st.just(np.array([0.5, -np.inf])),
    data=st.data(),
)
def test_blocks_of_keys_merge_to_the_whole_in_any_order_and_grouping(seed, dtype, size, cuts, sinks, data):
    q, k, allowed = draw_inputs(seed, dtype, size)
    parts = data.draw(st.permutations(blocks(q, k, allowed, cuts)))
    split = data.draw(st.integers(1, len(parts) - 1))
    left_to_right = reduce(merge, parts)
    grouped = merge(reduce(merge, parts[:split]), reduce(merge, parts[split:]))
    for keys in (left_to_right, grouped):
        total = keys if sinks is None else merge(keys, sink_partial(sinks, keys))
        assert_record(finalize_record(keys, total), q, k, allowed, UNIT, RECORDING, sink_logits=sinks)


@given(seed=SEEDS, cuts=st.sets(st.integers(1, KEYS - 1)))
def test_of_equal_scores_the_first_key_is_the_top_one(seed, cuts):
    q, k, allowed = draw_inputs(seed, np.float64, size=0.0)
    parts = blocks(q, k, allowed, cuts)
    for order in (parts, parts[::-1]):
        keys = reduce(merge, order)
        first = np.where(allowed.any(1), allowed.argmax(1), -1)
        np.testing.assert_array_equal(finalize_record(keys, keys).top_key, np.broadcast_to(first, (1, 2, ROWS)))


def test_equal_weights_have_the_entropy_of_their_number():
    q, k = np.zeros((1, 1, ROWS, DIM)), np.zeros((1, 1, KEYS, DIM))
    allowed = np.tri(ROWS, KEYS, dtype=bool)
    whole = partial_of(q, k, allowed, np.arange(KEYS))
    found = finalize_record(whole, whole)
    seen = np.arange(1, ROWS + 1)
    np.testing.assert_array_max_ulp(found.entropy[0, 0], np.log(seen), 2)
    np.testing.assert_array_equal(found.distance[0, 0], (seen - 1) / 2)
    np.testing.assert_array_equal(found.sinks[0, 0], np.minimum(seen, 3) / seen)


def test_scores_so_far_apart_that_their_difference_overflows_stay_finite():
    """Fails with FloatingPointError where 0 times the difference is formed: it is inf in float32."""
    a, b = (empty_partial(1, 1, 1, 1, np.dtype("f4"), recording=RECORDING) for _ in range(2))
    for side, score, key in ((a, 3e38, 4), (b, -3e38, 2)):
        side.row_max[...], side.row_sum[...], side.record.top_key[...] = score, 1, key
    with np.errstate(over="ignore"):
        keys = merge(a, b)
    found = finalize_record(keys, keys)
    assert (found.entropy.item(), found.top_key.item()) == (0, 4)


def test_a_sink_logit_above_all_scores_is_no_top_key():
    q, k, allowed = draw_inputs(0, np.float64)
    [keys] = blocks(q, k, allowed, [])
    total = merge(keys, sink_partial(np.array([50.0, 50.0]), keys))
    found = finalize_record(keys, total)
    np.testing.assert_array_equal(found.top_key, keys.record.top_key)
    np.testing.assert_array_equal(found.top_score, keys.row_max)


def test_rows_without_keys_have_zeros_and_no_key():
    empty = empty_partial(1, 2, 3, 4, np.dtype("f4"), recording=RECORDING)
    found = finalize_record(empty, empty)
    assert (found.top_key == -1).all()
    assert np.isneginf(found.top_score).all()
    for array in (found.entropy, found.distance, found.sinks):
        assert array.dtype == np.float32
        assert (array == 0).all()


def test_rows_that_met_nan_know_nothing():
    partial = empty_partial(1, 1, 1, 1, np.dtype("f4"), recording=RECORDING)
    partial.row_max[...], partial.row_sum[...], partial.record.top_key[...] = np.inf, np.nan, 7
    for name in SUMS[:3]:
        partial.record.arrays[name][...] = np.nan
    found = finalize_record(partial, partial)
    assert np.isnan([found.entropy, found.distance, found.top_score, found.sinks]).all()
    assert found.top_key.item() == -1


def test_partials_that_record_otherwise_are_refused():
    plain = empty_partial(1, 1, 1, 1, np.dtype("f4"))
    one, other = (empty_partial(1, 1, 1, 1, np.dtype("f4"), recording=Recording(n)) for n in (1, 2))
    with pytest.raises(ShapeError, match="one of two partials records its rows and the other does not"):
        merge(plain, one)
    with pytest.raises(ShapeError, match="1 and 2 first keys"):
        merge(one, other)


@pytest.mark.parametrize("sinks", [0, -1, 1.5, True, "4"])
def test_a_recording_of_no_keys_is_refused(sinks):
    with pytest.raises(ShapeError, match="must be a whole number of keys >= 1"):
        Recording(sinks)


def test_a_key_gives_way_only_to_a_larger_score_or_an_earlier_equal():
    scores = np.array([1.0, 1.0, 2.0, -np.inf])
    mine, theirs = np.array([5, 5, 5, -1]), np.array([3, 7, 3, 9])
    found = first_of_largest((scores, mine), (np.ones(4), theirs))
    np.testing.assert_array_equal(found, [3, 5, 5, 9])
