import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi.core import slice_algebra, slice_cut
from ringmpi.core.slice_algebra import intersect, unite
from ringmpi.core.slice_cut import Budget, minus
from ringmpi.core.slices import (
    NO_SLICES,
    UNBOUNDED,
    clip_queries,
    count_pairs,
    order,
    row_counts,
    table,
    tighten,
    total_pairs,
)
from ringmpi.errors import MaskError
from tests.core.slice_tables import SIZE, dense, masks, rows, tables


def subtract(b, a):
    return order(minus(tighten(b), tighten(a), Budget()))


def assert_resolved(slices, mask):
    """Disjoint, tight, by q0, and exactly the pairs of the dense mask."""
    np.testing.assert_array_equal(dense(slices), mask.astype(int))
    np.testing.assert_array_equal(slices, tighten(slices))
    assert (np.diff(slices[:, 0]) >= 0).all()
    assert total_pairs(slices) == mask.sum()
    assert slices.dtype == np.int64


@given(masks, masks)
def test_algebra_agrees_with_dense_masks(a, b):
    in_a, in_b = dense(a) > 0, dense(b) > 0
    assert_resolved(intersect(a, b), in_a & in_b)
    assert_resolved(subtract(b, a), in_b & ~in_a)
    assert_resolved(unite([a, b]), in_a | in_b)


@given(st.lists(tables, max_size=4))
def test_unite_counts_overlaps_once(found):
    expected = sum((dense(slices) for slices in found), np.zeros((SIZE, SIZE), int)) > 0
    assert_resolved(unite(found), expected)


@given(st.lists(rows, max_size=20).map(table), st.sampled_from([1, 2, 3]))
def test_unite_does_not_depend_on_how_many_layers_are_merged_at_once(slices, at_once):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slice_algebra, "FIRST_LAYERS", at_once)
        assert_resolved(unite([slices]), dense(slices) > 0)


@given(st.lists(rows, min_size=1, max_size=20).map(table).map(tighten).filter(len))
def test_layers_are_disjoint_in_q_as_few_as_can_be_and_the_fullest_comes_first(slices):
    layer = slice_algebra._layers(slices)
    rows_of = np.array([(q0 <= np.arange(SIZE)) & (np.arange(SIZE) < q1) for q0, q1 in slices[:, :2]])
    assert max(rows_of[layer == one].sum(0).max() for one in layer) == 1
    assert sorted(set(layer.tolist())) == list(range(rows_of.sum(0).max()))
    assert (np.diff(np.bincount(layer, count_pairs(slices))) <= 0).all()


@given(tables, masks)
def test_subtract_keeps_overlaps_of_what_it_cuts(b, a):
    np.testing.assert_array_equal(dense(subtract(b, a)), dense(b) * (dense(a) == 0))


@given(masks, masks)
def test_inputs_are_left_as_they_were(a, b):
    before = a.copy(), b.copy()
    for operation in (intersect, subtract, lambda a, b: unite([a, b])):
        operation(a, b)
    np.testing.assert_array_equal(a, before[0])
    np.testing.assert_array_equal(b, before[1])


def test_nothing_in_nothing_out():
    full = table([[0, 3, 0, 3, -UNBOUNDED, UNBOUNDED]])
    no_rows = table([[0, 0, 0, 3, -UNBOUNDED, UNBOUNDED], [0, 3, 2, 2, 0, 0]])
    for empty in (NO_SLICES, no_rows):
        assert intersect(full, empty).shape == intersect(empty, full).shape == (0, 6)
        assert unite([empty, empty]).shape == subtract(empty, full).shape == (0, 6)
        np.testing.assert_array_equal(subtract(full, empty), tighten(full))
    assert unite([]).shape == (0, 6)


def test_intersect_takes_unbounded_queries_and_keys():
    everywhere = [-UNBOUNDED, UNBOUNDED, -UNBOUNDED, UNBOUNDED]
    band, box = table([[*everywhere, -2, 0]]), table([[3, 9, 0, 9, -UNBOUNDED, UNBOUNDED]])
    assert intersect(band, box).tolist() == [[3, 9, 1, 9, -2, 0]]
    assert intersect(band, table([[*everywhere, -UNBOUNDED, -1]]))[0, 4:].tolist() == [-2, -1]


def test_unbounded_positions_are_refused_where_they_would_overflow():
    with pytest.raises(MaskError, match=r"reach position 1152921504606846976; at most 137438953472"):
        unite([table([[0, UNBOUNDED, 0, 5, -UNBOUNDED, UNBOUNDED]])])


def test_positions_up_to_the_limit_are_resolved_exactly():
    end = slice_algebra.POSITION_LIMIT
    strips = table([[0, end, 5 * n, 5 * n + 2, -UNBOUNDED, UNBOUNDED] for n in range(10)])
    bands = table([[0, end, 0, end, -7 * n - 1, -7 * n] for n in range(1000)])
    united = unite([strips, bands])
    crossings = total_pairs(intersect(strips, bands))
    assert total_pairs(united) == 2 * 10 * end + total_pairs(bands) - crossings


# large masks


def keys_of_row(slices, row, keys):
    """Keys that a row sees, each once; asserts nothing about overlaps."""
    at = clip_queries(slices, row, row + 1)
    steps = np.zeros(keys + 1, int)
    np.add.at(steps, at[:, 2], 1)
    np.add.at(steps, at[:, 3], -1)
    return np.cumsum(steps)[:keys]


def assert_rows_agree(resolved, raw, rows, length):
    counts = row_counts(resolved, length)
    for row in rows.tolist():
        seen = keys_of_row(resolved, row, length)
        assert seen.max(initial=0) <= 1
        np.testing.assert_array_equal(seen > 0, keys_of_row(raw, row, length) > 0)
        assert counts[row] == seen.sum()
    assert counts.sum() == total_pairs(resolved)


def crossing(rng, count, length, width):
    """Strips of keys and bands over random rows, of mean width `width` x `length`."""
    slices = np.tile(table([[0, length, 0, length, -UNBOUNDED, UNBOUNDED]]), (count, 1))
    slices[:, :2] = np.sort(rng.integers(0, length + 1, (count, 2)), 1)
    band = rng.random(count) < 0.5
    start = np.where(band, rng.integers(-length, length, count), rng.integers(0, length, count))
    stop = start + 1 + (rng.random(count) * 2 * width * length).astype(int)
    slices[band, 4], slices[band, 5] = start[band], stop[band]
    slices[~band, 2], slices[~band, 3] = start[~band], np.minimum(stop[~band], length)
    return slices


def test_documents_causal_and_sinks(rng):
    lengths = rng.integers(1, 20, 20_000)
    stop = np.cumsum(lengths)
    start, total = stop - lengths, int(stop[-1])
    free = np.full(len(stop), UNBOUNDED)
    documents = np.stack([start, stop, start, stop, -free, free], 1)
    causal = table([[0, total, 0, total, -UNBOUNDED, 0]])
    sinks = intersect(causal, table([[0, total, 0, 4, -UNBOUNDED, UNBOUNDED]]))
    within = intersect(documents, causal)
    assert total_pairs(within) == (lengths * (lengths + 1) // 2).sum()
    united = unite([within, sinks])
    assert len(united) < len(within) + 10
    assert_rows_agree(united, np.concatenate([within, sinks]), rng.integers(0, total, 20), total)


@pytest.mark.parametrize("width", [0.3, 0.03, 0.003])
def test_many_overlapping_strips_and_bands(rng, width):
    length = 100_000
    raw = crossing(rng, 1000, length, width)
    assert_rows_agree(unite([raw]), raw, rng.integers(0, length, 20), length)


def test_hair_thin_strips_crossing_bands_are_refused_by_name(rng):
    with pytest.raises(MaskError, match=r"takes [\d,]+ overlaps .* limits are 4,194,304 .* Use fewer or wider slices"):
        unite([crossing(rng, 10_000, 1_000_000, 1e-4)])


def many(count):
    return table([[n, n + 1, 0, 9, -UNBOUNDED, UNBOUNDED] for n in range(count)])


@pytest.mark.parametrize(
    ("limit", "value", "found"),
    [
        ("OVERLAP_LIMIT", 150, "takes 201 overlaps"),
        ("TOTAL_LIMIT", 300, "takes 200 overlaps of slices in one step and 401 in all"),
    ],
)
def test_each_limit_refuses(monkeypatch, limit, value, found):
    monkeypatch.setattr(slice_cut, limit, value)
    with pytest.raises(MaskError, match=found):
        subtract(many(100), table([[0, 100, 4, 5, -UNBOUNDED, UNBOUNDED]]))


def test_a_table_of_too_many_slices_is_refused(monkeypatch):
    monkeypatch.setattr(slice_cut, "OVERLAP_LIMIT", 99)
    with pytest.raises(MaskError, match="a table of 100 slices"):
        unite([many(100)])


def test_unite_checks_the_size_of_all_that_it_holds(monkeypatch, rng):
    checked = []
    monkeypatch.setattr(slice_algebra, "check_size", checked.append)
    monkeypatch.setattr(slice_algebra, "FIRST_LAYERS", 1)
    united = unite([crossing(rng, 100, 10_000, 0.01)])
    assert len(checked) > 2
    assert checked[-1] == len(united) > 100
