import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ringmpi.core.ranges import expand, positions_of

BOUNDS = st.integers(-20, 20)


def values(start, stop):
    """All (i, value), by plain loops."""
    return [(i, value) for i, (a, b) in enumerate(zip(start, stop, strict=True)) for value in range(a, b)]


def assert_holds(found, expected):
    assert [array.dtype for array in found] == [np.int64] * 2
    assert list(zip(*(array.tolist() for array in found), strict=True)) == expected


@given(st.lists(st.tuples(BOUNDS, BOUNDS), max_size=9))
def test_ranges_one_after_the_other_empty_ones_left_out(bounds):
    start, stop = (np.array([pair[side] for pair in bounds], np.int64) for side in (0, 1))
    assert_holds(expand(start, stop), values(start.tolist(), stop.tolist()))


@given(BOUNDS, st.lists(BOUNDS, max_size=9))
def test_a_number_is_the_start_of_all(start, stop):
    assert_holds(expand(start, np.array(stop, np.int64)), values([start] * len(stop), stop))


def test_positions_beyond_32_bit_are_exact():
    start = np.array([1 << 40, -(1 << 40)])
    assert_holds(expand(start, start + 2), values(start.tolist(), (start + 2).tolist()))
    assert positions_of([range(1 << 40, (1 << 40) + 5, 2)]).tolist() == [1 << 40, (1 << 40) + 2, (1 << 40) + 4]


@given(st.lists(st.builds(range, BOUNDS, BOUNDS, st.integers(1, 5)), max_size=9))
def test_positions_are_those_of_all_ranges_in_order(ranges):
    found = positions_of(ranges)
    assert found.dtype == np.int64
    assert found.tolist() == [position for part in ranges for position in part]
