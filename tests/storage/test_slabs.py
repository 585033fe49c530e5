import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ringmpi.storage import slabs as slabs_module
from ringmpi.storage.slabs import Axes, as_slice, joined, rows_within, shared_rows, slab_extent, slabs

shapes = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(0, 40))
ranges = st.lists(
    st.builds(
        lambda start, count, step: range(start, start + count * step, step),
        *[st.integers(0, 30)] * 2,
        st.integers(1, 7),
    ),
    max_size=6,
)


@given(shapes, st.integers(1, 16), st.integers(1, 2000))
def test_slabs_without_unit_follow_the_order_of_the_elements(shape, row_bytes, slab_bytes):
    array = np.arange(np.prod(shape)).reshape(shape)
    extent = slab_extent(shape, row_bytes, slab_bytes, (1, 1, 1))
    boxes = [array[slab.batch, slab.heads, slab.rows].ravel() for slab in slabs(shape, extent)]
    assert np.array_equal(np.concatenate([array.ravel()[:0], *boxes]), array.ravel())


@given(shapes, st.integers(1, 16), st.integers(1, 2000), st.tuples(*[st.integers(1, 4)] * 2, st.integers(1, 16)))
def test_slabs_keep_within_the_bound_or_are_one_row(shape, row_bytes, slab_bytes, unit):
    extent = slab_extent(shape, row_bytes, slab_bytes, unit)
    assert np.prod(extent) * row_bytes <= max(slab_bytes, row_bytes)


@given(shapes, st.tuples(*[st.integers(1, 4)] * 2, st.integers(1, 16)))
def test_slabs_hold_whole_units_where_one_fits(shape, unit):
    extent = slab_extent(shape, 2, 2 * int(np.prod(unit)) + 1, unit)
    assert all(e % u == 0 or e >= n for e, u, n in zip(extent, unit, shape, strict=True))


def test_rows_grow_before_heads_and_heads_before_batch():
    assert slab_extent((4, 8, 100), 10, 500, (1, 1, 1)) == (1, 1, 50)
    assert slab_extent((4, 8, 100), 10, 3500, (1, 1, 1)) == (1, 3, 100)
    assert slab_extent((4, 8, 100), 10, 17000, (1, 1, 1)) == (2, 8, 100)


@given(ranges, st.integers(0, 100), st.integers(0, 60))
def test_rows_within_are_those_positions_and_their_indices(ranges, start, count):
    everything = [position for positions in ranges for position in positions]
    found = rows_within(ranges, slice(start, start + count))
    pairs = [pair for positions, indices in found for pair in zip(positions, indices, strict=True)]
    assert pairs == [(p, i) for i, p in enumerate(everything) if start <= p < start + count]


@given(ranges, st.integers(0, 8))
def test_joined_rows_are_all_there_and_gaps_decide(ranges, gap):
    maps = rows_within(ranges, slice(0, 1000))
    groups = list(joined(maps, gap))
    assert sorted(map(str, maps)) == sorted(str(one) for group in groups for one in group)
    spans = [(group[0][0].start, max(rows[-1] for rows, _ in group) + 1) for group in groups]
    assert all(after[0] > before[1] + gap for before, after in zip(spans, spans[1:], strict=False))
    for group in groups:
        covered = group[0][0].start
        for rows, _ in group:
            assert rows.start <= covered + gap
            covered = max(covered, rows[-1] + 1)


def test_rows_after_a_range_inside_another_are_joined_to_the_longer_one():
    maps = [(range(0, 30, 10), range(3)), (range(5, 7), range(3, 5)), (range(19, 21), range(5, 7))]
    assert list(joined(maps, 0)) == [maps]


@given(st.integers(0, 20), st.integers(1, 20), st.integers(1, 5), st.integers(0, 20))
def test_as_slice_picks_the_positions(start, count, step, before):
    positions = range(start + before, start + before + count * step, step)
    rows = np.arange(start, start + before + count * step)
    assert rows[as_slice(positions, start)].tolist() == list(positions)


def test_axes_that_are_not_stored_are_one():
    assert Axes(has_batch=False, has_dim=False).full((3, 7)) == (1, 3, 7, 1)
    assert Axes(has_batch=True, has_dim=True).stored((2, 3, 7, 5)) == (2, 3, 7, 5)
    assert Axes(has_batch=False, has_dim=True).stored((0, 3, 7, 5)) == (3, 7, 5)
    assert Axes(has_batch=True, has_dim=False).stored((2, 3, 7, 0)) == (2, 3, 7)


ascending = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(1, 7)), max_size=5).map(
    lambda parts: _one_after_another(parts)
)


def _one_after_another(parts):
    """Ranges (gap before, positions, step), none of which begins before another ends."""
    found, at = [], 0
    for gap, count, step in parts:
        found.append(range(at + gap, at + gap + count * step, step))
        at = found[-1][-1] + 1
    return found


@given(ascending, ascending)
def test_shared_rows_are_those_whose_positions_are_in_both(held, wanted):
    there, here = ([position for part in ranges for position in part] for ranges in (held, wanted))
    found = sorted(
        (row, place) for rows, places in shared_rows(held, wanted) for row, place in zip(rows, places, strict=True)
    )
    assert found == [(row, here.index(position)) for row, position in enumerate(there) if position in here]


def test_many_ranges_are_compared_with_those_that_they_overlap_alone(monkeypatch):
    compared = []
    monkeypatch.setattr(
        slabs_module, "_common", lambda a, b, common=slabs_module._common: compared.append(a) or common(a, b)
    )
    held, wanted = ([range(at, at + 8) for at in range(first, 20_000, 10)] for first in (0, 5))
    assert sum(len(rows) for rows, _ in shared_rows(held, wanted)) == 2_000 * 6 - 3
    assert len(compared) < 2.5 * len(held)
