"""Sums of what keys receive, block by block, against loops; and which rows see a key."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi import Mask
from ringmpi.core import attention_map
from ringmpi.core.attention_map import MapSums, averaged, check_block, row_groups, rows_with_keys
from ringmpi.core.shapes import HeadShape
from ringmpi.errors import ShapeError
from tests.strategies import LENGTHS, masks

BLOCKS = st.integers(1, 9)


@given(LENGTHS, LENGTHS, BLOCKS, st.data())
def test_rows_that_see_a_key_are_counted_whatever_the_window(queries, keys, block, data):
    mask = data.draw(masks(queries, keys))
    seen = mask.allowed(queries, keys).any(1)
    expected = [int(seen[start : start + block].sum()) for start in range(0, queries, block)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_map, "ROWS_AT_ONCE", data.draw(st.integers(1, 50)))
        assert rows_with_keys(mask.resolve(queries, keys), queries, block).tolist() == expected


@given(st.sets(st.integers(0, 60)), BLOCKS, st.integers(1, 4), st.data())
def test_groups_hold_every_row_once_in_few_blocks(positions, block, columns, data):
    block_of = np.array(sorted(positions), np.int64) // block
    start = data.draw(st.integers(0, len(block_of)))
    stop = data.draw(st.integers(start, len(block_of)))
    groups = list(row_groups(block_of, start, stop, columns))
    assert [row for group in groups for row in range(group.start, group.stop)] == list(range(start, stop))
    for group in groups:
        assert 1 <= len(group.blocks) <= columns
        assert group.blocks[group.column].tolist() == block_of[group.start : group.stop].tolist()
        marks = group.marks(np.dtype(np.float16))
        assert (marks.sum(1) == 1).all()
        assert (marks.argmax(1) == group.column).all()


def test_sums_of_keys_in_any_place_go_to_their_blocks():
    """Keys of one rank lie in several runs; what they receive comes head by head and some keys at a time."""
    rng = np.random.default_rng(0)
    keys, heads = np.array([0, 1, 2, 3, 4, 20, 21, 22]), HeadShape(2, 4, 2, 8, 1)
    sums = MapSums(heads, keys, 30, block=4)
    assert sums.key_blocks.tolist() == [0, 1, 5]
    mass = rng.random((2, 4, len(keys), 8))
    for nth in range(2):
        for some in (slice(0, 3), slice(3, 8)):
            for columns in ([0, 2, 7], [1, 3, 4, 5, 6]):
                part = mass[:, nth::2, some][..., columns].astype(np.float32)
                sums.add(slice(nth, None, 2), some, np.array(columns), part)
    found = mass.astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(sums.received, found.sum(-1), rtol=1e-12)
    for own, inside in enumerate(([0, 1, 2, 3], [4], [5, 6, 7])):
        np.testing.assert_allclose(sums.blocks[..., own], found[:, :, inside].sum(2), rtol=1e-12)


def test_without_a_map_only_what_keys_receive_is_kept():
    sums = MapSums(HeadShape(1, 1, 1, 8, 1), np.arange(5), 30, block=None)
    sums.add(slice(None), slice(1, 3), np.zeros(1, np.int64), np.ones((1, 1, 2, 1), np.float32))
    assert sums.blocks.size == 0
    assert sums.received.tolist() == [[[0, 1, 1, 0, 0]]]


def test_memory_falls_with_the_ranks_where_shards_are_runs():
    whole = MapSums(HeadShape(1, 1, 1, 8, 1), np.arange(4096), 4096, block=16)
    part = MapSums(HeadShape(1, 1, 1, 8, 1), np.arange(1024, 2048), 4096, block=16)
    assert part.blocks.nbytes * 4 == whole.blocks.nbytes == 8 * 256 * 256


def test_blocks_without_rows_that_see_a_key_are_0():
    assert averaged(np.array([[4.0, 2.0], [0.0, 0.0]]), np.array([2, 0])).tolist() == [[2, 1], [0, 0]]


@pytest.mark.parametrize(("block", "words"), [(0, ">= 1"), (True, ">= 1"), (2.5, ">= 1"), (1, "Use larger blocks")])
def test_blocks_that_make_no_map_are_refused(block, words):
    with pytest.raises(ShapeError, match=words):
        check_block(HeadShape(1, 8, 8, 64, 64), 1 << 17, 1 << 17, block)
    check_block(HeadShape(1, 8, 8, 64, 64), 1 << 17, 1 << 17, 64)


def test_a_million_positions_of_documents_are_counted_in_little_time_and_memory():
    lengths = [1000] * 1000
    counts = rows_with_keys(Mask.documents(lengths, within=Mask.window(10, -0)).resolve(10**6, 10**6), 10**6, 10**5)
    assert counts.tolist() == [10**5] * 10
