import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi.core.slices import (
    NO_SLICES,
    UNBOUNDED,
    clip_queries,
    close,
    count_pairs,
    occupied,
    order,
    row_counts,
    table,
    tighten,
    total_pairs,
)
from ringmpi.errors import MaskError
from tests.core.slice_tables import SIZE, dense, loose_tables, masks, tables


def test_table_takes_lists_arrays_and_nothing():
    row = [0, 4, 0, 4, -UNBOUNDED, 0]
    for rows in ([row], np.array([row]), np.array([row], ">i8"), [tuple(row)]):
        found = table(rows)
        assert found.dtype == np.int64
        assert found.tolist() == [row]
    assert table(np.ones((2, 6), np.uint8)).tolist() == [[1] * 6] * 2
    for nothing in ([], (), np.empty((0, 6)), NO_SLICES):
        assert table(nothing).shape == (0, 6)


def test_table_is_a_copy():
    rows = np.zeros((1, 6), np.int64)
    table(rows)[0, 0] = 7
    assert rows[0, 0] == 0


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([1, 2, 3, 4, 5, 6], r"shape \(6,\)"),
        ([[1, 2, 3, 4, 5]], r"shape \(1, 5\)"),
        ([[]], r"shape \(1, 0\)"),
        ([[0.0, 1.0, 0.0, 1.0, 0.0, 0.5]], "dtype float64"),
        ([[True] * 6], "dtype bool"),
        ([[1, 2], [3]], "rows of different lengths"),
        ([[0, 1, 0, 1, 0, 1 << 80]], "dtype object"),
        (np.array([[0, 1, 0, 1, 0, 1 << 63]], np.uint64), "to 9223372036854775808"),
        ([[0, 1, 0, 1, -UNBOUNDED - 1, 0]], "from -1152921504606846977"),
    ],
)
def test_table_says_what_is_wrong_with_other_forms(rows, found):
    with pytest.raises(MaskError, match=found):
        table(rows)


@given(loose_tables)
def test_tighten_keeps_the_pairs_and_moves_every_bound_to_a_pair(slices):
    reach = 4 * SIZE  # loose bounds hold pairs outside 0..SIZE: look at a window, and only at slices inside it
    slices[:, [0, 2]] = np.maximum(slices[:, [0, 2]], 0)
    slices[:, [1, 3]] = np.minimum(slices[:, [1, 3]], reach)
    kept = occupied(close(slices))
    for loose, holds in zip(slices, kept, strict=True):
        i, j = np.nonzero(dense(loose[None], reach, reach))
        assert holds == bool(len(i))
        if holds:
            tight = [i.min(), i.max() + 1, j.min(), j.max() + 1, (j - i).min(), (j - i).max()]
            assert tighten(loose[None]).tolist() == [tight]
    assert len(tighten(slices)) == kept.sum()


@given(st.lists(st.lists(st.sampled_from([-UNBOUNDED, 0, 3, UNBOUNDED]), min_size=6, max_size=6), max_size=20))
def test_unbounded_values_anywhere_do_not_overflow(rows):
    slices = table(rows)
    for (q0, q1, k0, k1, low, high), holds in zip(rows, occupied(close(slices)), strict=True):
        least, most = max(low, k0 - q1 + 1), min(high, k1 - 1 - q0)  # Python integers
        assert holds == (q0 < q1 and k0 < k1 and least <= most)
    assert (np.abs(tighten(slices)) <= UNBOUNDED).all()


@given(tables)
def test_count_pairs_counts(slices):
    tight = tighten(slices)
    assert count_pairs(tight).tolist() == [dense(slice[None]).sum() for slice in tight]


def test_counts_are_exact_up_to_2_to_the_62_a_slice_and_beyond_2_to_the_63_in_all():
    side = 1 << 31
    full, half = [0, side, 0, side, -UNBOUNDED, UNBOUNDED], [0, side, 0, side, -UNBOUNDED, 0]
    assert count_pairs(tighten(table([full, half]))).tolist() == [side**2, side * (side + 1) // 2]
    rows = np.tile(full, (5, 1)) + np.arange(5)[:, None] * [side, side, 0, 0, 0, 0]
    assert total_pairs(table(rows)) == 5 * side**2 > 1 << 63


@given(st.integers(1 << 32, 1 << 40), st.integers(1, 1 << 20))
def test_a_thin_band_is_counted_exactly_where_products_wrap(side, width):
    band = tighten(table([[0, side, 0, side, 1 - width, 0]]))
    assert count_pairs(band).tolist() == [side * width - width * (width - 1) // 2]


def test_a_slice_with_more_pairs_than_can_be_counted_is_refused():
    side = (1 << 31) + 1
    with pytest.raises(MaskError, match=r"4\.61e\+18 pairs"):
        count_pairs(tighten(table([[0, side, 0, side, -UNBOUNDED, UNBOUNDED]])))


@given(masks, st.integers(0, SIZE + 3))
def test_row_counts_are_the_keys_of_each_row(slices, length):
    np.testing.assert_array_equal(row_counts(slices, length), dense(slices, length).sum(1))


@given(tables, st.integers(0, SIZE), st.integers(0, SIZE))
def test_clip_queries_keeps_the_rows_asked_for(slices, start, stop):
    expected = dense(slices)
    expected[:start] = expected[stop:] = 0
    before = slices.copy()
    clipped = clip_queries(slices, start, stop)
    np.testing.assert_array_equal(dense(clipped), expected)
    np.testing.assert_array_equal(clipped, tighten(clipped))
    np.testing.assert_array_equal(slices, before)


def test_no_rows_and_no_slices_count_nothing():
    full = table([[0, 3, 0, 3, -UNBOUNDED, UNBOUNDED]])
    assert row_counts(full, 0).shape == (0,)
    assert row_counts(NO_SLICES, 2).tolist() == [0, 0]
    assert count_pairs(NO_SLICES).shape == (0,)
    assert total_pairs(table([[0, 0, 0, 3, -UNBOUNDED, UNBOUNDED], [0, 3, 2, 2, 0, 0]])) == 0


def test_order_is_by_q0_then_k0_then_low():
    rows = [[0, 9, 0, 9, -2, 0], [0, 9, 0, 9, 1, 2], [0, 9, 3, 9, 0, 0], [1, 9, 0, 9, 0, 0]]
    assert order(table(rows[::-1])).tolist() == rows
