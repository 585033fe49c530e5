"""Which rows are recomputed, spread over positions and ranks, and on what scale they are judged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi.analysis.recompute import ValueScale, sample_positions
from ringmpi.core.reference import KeySlab
from ringmpi.core.sharding import Sharding

LAYOUTS = st.sampled_from([Sharding.contiguous, Sharding.zigzag, Sharding.striped])


@given(
    layout=LAYOUTS,
    length=st.integers(0, 300),
    ranks=st.integers(1, 9),
    rows=st.integers(0, 400),
    seed=st.integers(0, 99),
)
def test_as_many_positions_as_asked_for_each_once_and_all_if_there_are_no_more(layout, length, ranks, rows, seed):
    positions = sample_positions(layout(length, ranks).shards, rows, seed)
    assert len(positions) == min(rows, length)
    assert (np.diff(positions) > 0).all()
    if rows >= length:
        assert positions.tolist() == list(range(length))
    elif rows:
        assert 0 <= positions[0] <= positions[-1] < length


@given(layout=LAYOUTS, ranks=st.integers(1, 9), seed=st.integers(0, 99))
def test_every_rank_is_sampled_in_proportion(layout, ranks, seed):
    sharding, rows = layout(1000, ranks), 64
    positions = sample_positions(sharding.shards, rows, seed)
    for rank in range(ranks):
        share = np.isin(positions, sharding.positions(rank)).sum()
        assert abs(share - rows * sharding.shard_length(rank) / 1000) <= 2


@pytest.mark.parametrize("layout", [Sharding.contiguous, Sharding.zigzag])
def test_every_part_of_the_sequence_is_sampled(layout):
    positions = sample_positions(layout(1000, 4).shards, 50, seed=3)
    assert set(positions // 40) == set(range(25))


def test_the_seed_decides():
    shards = Sharding.zigzag(1000, 4).shards
    assert (sample_positions(shards, 50, 1) == sample_positions(shards, 50, 1)).all()
    assert (sample_positions(shards, 50, 1) != sample_positions(shards, 50, 2)).any()


def test_uneven_and_empty_shards_are_no_obstacle():
    shards = ((range(0, 90),), (), (range(90, 95), range(96, 100, 3)), (range(95, 96), range(97, 99)))
    assert sample_positions(shards, 1000, 0).tolist() == list(range(100))
    assert len(sample_positions(shards, 10, 0)) == 10


def test_the_scale_is_the_largest_value_that_a_row_sees_in_any_slab():
    values = ([3.0, -5.0, 1e9], [1.0, np.nan, np.inf])
    seen = ([[True, True, False], [False, False, False]], [[False, False, False], [True, True, True]])
    slabs = [
        KeySlab(range(3), np.array(allowed), np.zeros((1, 1, 3, 1)), np.reshape(v, (1, 1, 3, 1)))
        for allowed, v in zip(seen, values, strict=True)
    ]
    scale = ValueScale()
    assert list(scale.watched(iter(slabs))) == slabs
    assert scale.largest == 5.0
