"""Work tables: the pairs of the mask between two ranges of positions, in local indices, whatever the strides."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ringmpi.core.work import (
    COLUMNS,
    KEY_START,
    ROW_START,
    count_pairs,
    counted_from,
    cut,
    expand_rows,
    key_bounds,
    meet,
    within_rows,
)
from tests.strategies import LENGTHS, masks

STRIDES = st.integers(1, 5)


def seen(work, rows, keys):
    """How often each (local row, local key) is covered, straight from the definition of an item."""
    u, v = np.arange(rows)[:, None], np.arange(keys)
    times = np.zeros((rows, keys), int)
    for u0, u1, v0, v1, row_origin, row_stride, key_origin, key_stride, low, high in work.tolist():
        distance = key_origin + key_stride * v - row_origin - row_stride * u
        times += (u >= u0) & (u < u1) & (v >= v0) & (v < v1) & (distance >= low) & (distance <= high)
    return times


@st.composite
def meetings(draw):
    """(work, the boolean matrix it must be): a mask restricted to two ranges of positions."""
    query_length, key_length = draw(LENGTHS), draw(LENGTHS)
    mask = draw(masks(query_length, key_length))
    rows = range(draw(st.integers(0, query_length)), query_length, draw(STRIDES))
    keys = range(draw(st.integers(0, key_length)), key_length, draw(STRIDES))
    row_offset, key_offset = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    work = meet(mask.resolve(query_length, key_length), rows, keys, row_offset, key_offset)
    expected = np.zeros((row_offset + len(rows), key_offset + len(keys)), int)
    expected[row_offset:, key_offset:] = mask.allowed(query_length, key_length)[np.ix_(rows, keys)]
    return work, expected


@given(meetings())
def test_a_meeting_holds_its_pairs_once(meeting):
    work, expected = meeting
    assert work.shape[1] == COLUMNS
    assert (seen(work, *expected.shape) == expected).all()


@given(meetings())
def test_pairs_are_counted_exactly(meeting):
    work, expected = meeting
    by_item = [seen(item[None], *expected.shape).sum() for item in work]
    assert count_pairs(work).tolist() == by_item


@given(meetings())
def test_key_bounds_are_those_of_the_item(meeting):
    work, expected = meeting
    items, rows = expand_rows(work)
    times = np.zeros_like(expected)
    for row, start, stop in zip(rows, *key_bounds(work[items], rows), strict=True):
        times[row, start : max(start, stop)] += 1
    assert (times == expected).all()


@given(meetings(), st.integers(1, 400))
def test_cutting_keeps_every_pair(meeting, budget):
    work, expected = meeting
    calls = cut(work, budget)
    total = np.zeros_like(expected)
    for call in calls:
        total += seen(call, *expected.shape)
        area = (call[:, 1] - call[:, 0]) * (call[:, 3] - call[:, 2])
        assert area.sum() < 2 * budget
    assert (total == expected).all()


@given(meetings(), st.integers(1, 400), st.sampled_from([ROW_START, KEY_START]))
def test_all_that_a_row_or_key_meets_can_be_kept_in_one_call(meeting, budget, axis):
    work, expected = meeting
    calls = [seen(call, *expected.shape) for call in cut(work, budget, only=axis)]
    assert (sum(calls, np.zeros_like(expected)) == expected).all()
    meets = np.array([call.any(axis=1 if axis == ROW_START else 0) for call in calls], int)
    assert (meets.sum(axis=0) <= 1).all()


def test_equal_strides_are_counted_without_a_loop_over_rows():
    """A hundred million rows under a causal mask: the closed form, against the sum of an arithmetic series."""
    length = 1 << 30
    causal = np.array([[0, length, 0, length, -(1 << 60), 0]])
    work = meet(causal, range(0, length, 8), range(3, length, 8))
    rows = length // 8
    assert count_pairs(work).tolist() == [rows * (rows - 1) // 2]  # key 8v+3 <= query 8u when v < u


@given(meetings(), st.integers(0, 50), st.integers(0, 50))
def test_some_rows_of_a_meeting_are_those_rows(meeting, a, b):
    work, expected = meeting
    start, stop = sorted((a, b))
    inside = np.zeros_like(expected)
    inside[start:stop] = expected[start:stop]
    assert (seen(within_rows(work, start, stop), *expected.shape) == inside).all()


@given(meetings(), st.integers(0, 3), st.integers(0, 3))
def test_arrays_that_begin_later_hold_the_same_pairs(meeting, row, key):
    work, expected = meeting
    items = work[(work[:, ROW_START] >= row) & (work[:, KEY_START] >= key)]
    whole = seen(items, *expected.shape)
    assert (seen(counted_from(items, row, key), *whole[row:, key:].shape) == whole[row:, key:]).all()
