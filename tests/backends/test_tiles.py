"""Tiles: each pair of the work in one tile, none too large, and few of them."""

import numpy as np
import pytest
from hypothesis import given

from ringmpi import Mask
from ringmpi.backends.numpy.tiles import key_tiles
from tests.backends.meetings import TILE_SIZES, meet_all, meetings


def whole(mask, length):
    return meet_all(mask, (length, length), [range(length)], [range(length)])


def all_tiles(work, tile_rows=256, tile_keys=1024):
    return [tile for _, tiles in key_tiles(work, tile_rows, tile_keys) for tile in tiles]


def area(tile):
    return (tile.rows.stop - tile.rows.start) * (tile.keys.stop - tile.keys.start)


def pairs(tile):
    return area(tile) if tile.start is None else int((tile.stop - tile.start).sum())


@given(meetings(), TILE_SIZES, TILE_SIZES)
def test_each_pair_is_in_one_tile(meeting, tile_rows, tile_keys):
    times = np.zeros(meeting.allowed.shape, int)
    for tile in all_tiles(meeting.work, tile_rows, tile_keys):
        rows, keys = np.arange(tile.rows.start, tile.rows.stop), np.arange(tile.keys.start, tile.keys.stop)
        seen = np.ones((len(rows), len(keys)), bool)
        if tile.start is not None:
            seen = (tile.start[:, None] <= keys) & (keys < tile.stop[:, None])
        times[np.ix_(rows, keys)] += seen
    np.testing.assert_array_equal(times, meeting.allowed)


@given(meetings(), TILE_SIZES, TILE_SIZES)
def test_tiles_keep_their_limits(meeting, tile_rows, tile_keys):
    for keys, tiles in key_tiles(meeting.work, tile_rows, tile_keys):
        assert 0 < keys.stop - keys.start <= tile_keys
        for tile in tiles:
            assert 0 < tile.rows.stop - tile.rows.start <= tile_rows
            assert keys.start <= tile.keys.start < tile.keys.stop <= keys.stop
            assert pairs(tile) > 0
            if tile.start is not None:
                assert (tile.keys.start <= tile.start).all()
                assert (tile.start <= tile.stop).all()
                assert (tile.stop <= tile.keys.stop).all()


@given(meetings(), TILE_SIZES, TILE_SIZES)
def test_a_tile_knows_its_positions(meeting, tile_rows, tile_keys):
    for tile in all_tiles(meeting.work, tile_rows, tile_keys):
        row_origin, row_stride, key_origin, key_stride = tile.frame
        rows, keys = np.arange(tile.rows.start, tile.rows.stop), np.arange(tile.keys.start, tile.keys.stop)
        seen = slice(None) if tile.start is None else tile.start < tile.stop
        np.testing.assert_array_equal((row_origin + row_stride * rows)[seen], meeting.rows[tile.rows][seen])
        np.testing.assert_array_equal(key_origin + key_stride * keys, meeting.keys[tile.keys])


def test_only_tiles_that_the_band_crosses_have_bounds():
    tiles = all_tiles(whole(Mask.causal(), 2048).work, 256, 256)
    bounded = {(tile.rows.start // 256, tile.keys.start // 256) for tile in tiles if tile.start is not None}
    assert bounded == {(n, n) for n in range(8)}
    full = [(t.rows.start, t.rows.stop, t.keys.start, t.keys.stop) for t in tiles if t.start is None]
    assert sorted(full) == [(256 * i, 256 * i + 256, 256 * j, 256 * j + 256) for i in range(8) for j in range(i)]


def test_many_small_documents_make_few_tiles():
    tiles = all_tiles(whole(Mask.documents([10] * 600, within=Mask.causal()), 6000).work)
    assert len(tiles) < 600 / 4
    assert sum(map(area, tiles)) < 6000 * 100


@pytest.mark.parametrize("left", [15, 127, 1023])
def test_tiles_hug_a_window(left):
    tiles = all_tiles(whole(Mask.window(left, 0), 4096).work)
    assert sum(map(area, tiles)) < 4096 * (left + 1 + 130)


def test_small_items_that_share_rows_are_tiled_apart():
    mask = Mask.slices([(0, 5, 0, 3, -9, 9), (0, 5, 6, 9, -9, 9), (2, 4, 4, 5, -9, 9)])
    tiles = all_tiles(whole(mask, 9).work)
    assert sum(map(pairs, tiles)) == 15 + 15 + 2
    assert len(tiles) == 3


@pytest.mark.parametrize("tile_size", [4, 128])
def test_items_with_rows_that_see_nothing_are_tiled_right(tile_size):
    loose = np.array([[0, 9, 2, 8, 0, 1, 0, 1, 5, 5], [0, 9, 0, 4, 0, 1, 0, 1, 7, 8]])
    tiles = all_tiles(loose, tile_size, tile_size)
    assert sum(map(pairs, tiles)) == 3
    assert all((tile.start <= tile.stop).all() for tile in tiles)


def test_items_in_different_frames_are_tiled_apart():
    ranges = [range(4), range(8, 12)]
    meeting = meet_all(Mask.full(), (12, 12), ranges, ranges)
    assert {tuple(tile.frame.tolist()) for tile in all_tiles(meeting.work)} == {
        (row_origin, 1, key_origin, 1) for row_origin in (0, 4) for key_origin in (0, 4)
    }


def test_neighbours_of_uneven_lengths_are_cut_evenly():
    heights = {tile.rows.stop - tile.rows.start for tile in all_tiles(whole(Mask.full(), 257).work)}
    assert heights == {128, 129}
