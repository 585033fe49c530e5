"""Pairs of many ranks with many pieces at once: equal to the mask itself, whatever the layout."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ringmpi import Mask, Sharding
from ringmpi.core import pair_counts
from ringmpi.core.pair_counts import PairCounter
from ringmpi.core.schedule import SCHEDULES, cut_pieces
from tests.strategies import LENGTHS, RANKS, SCHEDULE_NAMES, masks, shardings


def counted(allowed, shards, pieces):
    """Straight from the boolean matrix."""
    cells = [[sum(allowed[np.ix_(q, k)].sum() for q in shard for k in piece) for piece in pieces] for shard in shards]
    return np.array(cells, np.int64).reshape(len(shards), len(pieces))


@given(LENGTHS, LENGTHS, RANKS, SCHEDULE_NAMES, st.data())
def test_pairs_of_every_rank_with_every_piece_are_those_of_the_mask(query_length, key_length, size, name, data):
    mask = data.draw(masks(query_length, key_length))
    shards = data.draw(shardings(query_length, size, mask, key_length)).shards
    pieces = [piece.ranges for piece in cut_pieces(data.draw(shardings(key_length, size)), SCHEDULES[name])]
    counter = PairCounter(mask.resolve(query_length, key_length), pieces)
    expected = counted(mask.allowed(query_length, key_length), shards, pieces)
    assert (counter.counts(shards) == expected).all()
    if size > 1:
        assert (counter.counts(shards[1:]) == expected[1:]).all()


@given(st.sampled_from(["contiguous", "zigzag", "striped"]), st.data())
def test_blocks_of_any_height_give_the_same(name, data):
    """The counts of many ranks are made some ranks at a time."""
    mask, sharding = data.draw(masks(40, 40)), getattr(Sharding, name)(40, 7)
    counter = PairCounter(mask.resolve(40, 40), sharding.shards)
    before, pair_counts.CELLS_AT_ONCE = pair_counts.CELLS_AT_ONCE, 1
    try:
        one_by_one = counter.counts(sharding.shards)
    finally:
        pair_counts.CELLS_AT_ONCE = before
    assert (one_by_one == counter.counts(sharding.shards)).all()


def test_a_piece_without_positions_has_no_pairs():
    counts = PairCounter(Mask.full().resolve(4, 4), [(), (range(4),), (range(0),)]).counts([(range(3),), ()])
    assert counts.tolist() == [[0, 12, 0], [0, 0, 0]]


def test_numbers_beyond_32_bits_are_exact():
    length = 3_000_000_000
    counts = PairCounter(Mask.causal().resolve(length, length), Sharding.zigzag(length, 2).shards)
    assert counts.counts(Sharding.zigzag(length, 2).shards).sum() == length * (length + 1) // 2
