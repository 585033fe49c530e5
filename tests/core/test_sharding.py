"""Shardings: every position has one owner, whatever the length and the rank count."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi import Mask, Sharding
from ringmpi.core.sharding import shardings_by_name
from ringmpi.errors import ShapeError
from tests.strategies import LENGTHS, RANKS, WHOLE_DTYPES, masks, shardings


class Place:
    def __init__(self, rank):
        self.rank = rank


@given(st.data(), LENGTHS, LENGTHS, RANKS)
def test_every_position_has_one_owner(data, length, key_length, size):
    sharding = data.draw(shardings(length, size, data.draw(masks(length, key_length)), key_length))
    owned = np.concatenate([sharding.positions(rank) for rank in range(size)])
    assert sorted(owned.tolist()) == list(range(length))
    assert [sharding.shard_length(rank) for rank in range(size)] == [len(sharding.positions(r)) for r in range(size)]
    assert all((np.diff(sharding.positions(rank)) > 0).all() for rank in range(size))
    assert Sharding.from_ranges(length, sharding.shards).shards == sharding.shards


@given(st.data(), LENGTHS, RANKS)
def test_what_is_taken_can_be_put_back(data, length, size):
    sharding = data.draw(shardings(length, size))
    whole = np.arange(2 * 3 * length * 2.0).reshape(2, 3, length, 2)
    again = np.full_like(whole, -1)
    for rank in range(size):
        shard = sharding.take(whole, Place(rank))
        assert (shard == whole[:, :, sharding.positions(rank)]).all()
        assert shard.flags.c_contiguous
        sharding.put(again, shard, rank)
    assert (again == whole).all()


def test_cuts_lie_where_they_are_documented():
    assert [sharding[0] for sharding in Sharding.contiguous(10, 4).shards] == [
        range(2),
        range(2, 5),
        range(5, 7),
        range(7, 10),
    ]
    assert Sharding.zigzag(16, 2).shards == ((range(4), range(12, 16)), (range(4, 8), range(8, 12)))
    assert Sharding.striped(7, 3).shards == ((range(0, 7, 3),), (range(1, 7, 3),), (range(2, 7, 3),))
    assert Sharding.contiguous(2, 4).shards == ((), (range(1),), (), (range(1, 2),))


def pairs_of(mask, sharding, length):
    rows = mask.allowed(length, length).sum(1)
    return np.array([rows[sharding.positions(rank)].sum() for rank in range(sharding.size)])


def test_load_balance_under_a_causal_mask():
    """Max over mean of the pairs of a rank: contiguous 2 - 1/P, zigzag exactly 1 where 2P divides, striped near 1."""
    length, size = 64, 8

    def worst(sharding, length):
        pairs = pairs_of(Mask.causal(), sharding, length)
        return pairs.max() / pairs.mean()

    contiguous = worst(Sharding.contiguous(512, size), 512)
    assert abs(contiguous - (2 - 1 / size)) < 0.01
    assert worst(Sharding.zigzag(length, size), length) == 1
    assert 1 < worst(Sharding.striped(length, size), length) < 1.15
    assert round(worst(Sharding.zigzag(698, 4), 698), 3) == 1.007


@given(st.data(), st.integers(1, 60), RANKS)
def test_balanced_ranks_differ_by_less_than_two_rows(data, length, size):
    mask = data.draw(masks(length, length))
    rows = mask.allowed(length, length).sum(1)
    pairs = pairs_of(mask, Sharding.balanced(mask, size, length=length), length)
    assert pairs.max() <= rows.sum() / size + rows.max(initial=0) + 1
    assert pairs.sum() == rows.sum()


def test_balanced_serves_windows_and_documents():
    mask = Mask.documents([500, 20, 30, 450], within=Mask.causal())
    pairs = pairs_of(mask, Sharding.balanced(mask, 4, length=1000), 1000)
    assert pairs.max() / pairs.mean() < 1.01
    assert shardings_by_name("auto", mask, 1000, 1000, 4)[0].name == "balanced"
    assert shardings_by_name("auto", Mask.causal(), 1000, 1000, 4)[0].name == "zigzag"
    queries, keys = shardings_by_name("auto", Mask.window(10, 0), 1000, 1000, 4)
    assert queries.name == "balanced"
    assert keys is queries
    queries, keys = shardings_by_name("balanced", Mask.causal(), 100, 50, 4)
    assert (queries.length, keys.length, keys.name) == (100, 50, "contiguous")


@pytest.mark.parametrize("dtype", WHOLE_DTYPES)
@pytest.mark.parametrize("name", ["contiguous", "zigzag", "striped"])
def test_whole_numbers_of_numpy_mean_the_same_sharding(name, dtype):
    whole, make = np.dtype(dtype).type, getattr(Sharding, name)
    assert make(whole(120), whole(3), block=whole(100)) == make(120, 3, block=100)
    assert make(700, whole(3), block=whole(100)) == make(700, 3, block=100)


@given(LENGTHS, RANKS, st.integers(1, 9))
def test_blocks_stay_whole(length, size, block):
    for sharding in (
        Sharding.contiguous(length, size, block=block),
        Sharding.zigzag(length, size, block=block),
        Sharding.striped(length, size, block=block),
        Sharding.balanced(Mask.causal(), size, length=length, block=block),
    ):
        owner = np.empty(length, int)
        for rank in range(size):
            owner[sharding.positions(rank)] = rank
        assert all(len(set(owner[start : start + block].tolist())) == 1 for start in range(0, length, block))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sharding.from_ranges(5, [[range(3)], [range(2, 5)]]), "position 2 has 2 owners"),
        (lambda: Sharding.from_ranges(5, [[range(3)], []]), "position 3 has 0 owners"),
        (lambda: Sharding.from_ranges(5, [[range(6)]]), "expected positions 0 to 4"),
        (lambda: Sharding.from_ranges(4, [[range(3, -1, -1)]]), "step > 0"),
        (lambda: Sharding.from_ranges(4, [[range(2, 4), range(2)]]), "each must end before the next begins"),
        (lambda: Sharding.from_ranges(8, [[range(0, 8, 2)], [range(1, 8, 2)]], block=4), "whole blocks of 4 positions"),
        (lambda: Sharding.from_ranges(8, [[range(0, 3)], [range(3, 8)]], block=4), "whole blocks of 4 positions"),
        (lambda: Sharding.contiguous(-1, 3), "length >= 0"),
        (lambda: Sharding.contiguous(4, 0), "ranks and block >= 1"),
        (lambda: shardings_by_name("zickzack", Mask.full(), 3, 3, 1), "choose one of contiguous, zigzag"),
        (lambda: Sharding.contiguous(5, 2).take(np.zeros((1, 4, 2)), Place(0)), "needs 5 positions"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ShapeError, match=message):
        make()
