"""Reading in turns: every rank gets its rows, every stored box is read by one rank, once."""

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringmpi.comm.local import LocalRing
from ringmpi.core.schedule import cut_pieces, schedule_by_name
from ringmpi.core.sharding import Sharding
from ringmpi.job import reading
from ringmpi.job.reading import Share, read_together
from ringmpi.storage import source as source_module
from ringmpi.storage.inputs import Inputs
from tests.storage.samples import any_bits, bits_of
from tests.strategies import shardings

LENGTH = 40
BOXES = [None, (1, 1, 8, 4), (2, 3, 8, 2), (1, 2, 7, 4), (2, 3, 64, 4)]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    array = any_bits(np.random.default_rng(8), (2, 3, LENGTH, 4), ">f4")
    path = tmp_path_factory.mktemp("reading") / "in.h5"
    with h5py.File(path, "w") as file:
        for n, chunks in enumerate(BOXES):
            options = {"chunks": chunks, "compression": "gzip", "maxshape": (2, 3, 64, 4)} if chunks else {}
            file.create_dataset(str(n), data=array, **options)
    return path, array.astype("f4")


def read_on_all_ranks(source, sharding, schedule, slab_bytes):
    """Pieces of all ranks, read together on simulated ranks; returns shares by rank."""
    pieces = cut_pieces(sharding, schedule_by_name(schedule))
    wanted = [[piece.ranges for piece in pieces if piece.owner == rank] for rank in range(sharding.size)]
    batch, heads, _, dim = source.full_shape
    shares = []
    for parts in wanted:
        arrays = [np.empty((batch, heads, sum(map(len, part)), dim), source.dtype) for part in parts]
        shares.append(Share(source, wanted, arrays))
    ring = LocalRing(sharding.size)
    ring.drive([read_together(ring.ranks[r], share, slab_bytes=slab_bytes) for r, share in enumerate(shares)])
    return shares


@pytest.mark.parametrize("name", range(len(BOXES)))
@settings(max_examples=25)
@given(data=st.data(), slab_bytes=st.sampled_from([1, 200, 1000, 1 << 20]))
def test_every_rank_gets_its_rows(stored, name, data, slab_bytes):
    path, array = stored
    sharding = data.draw(shardings(LENGTH, data.draw(st.integers(1, 5))))
    schedule = data.draw(st.sampled_from(["ring", "bidirectional"]))
    with Inputs(path) as inputs:
        shares = read_on_all_ranks(inputs.array(str(name)), sharding, schedule, slab_bytes)
    for rank, share in enumerate(shares):
        for part, found in zip(share.wanted[rank], share.arrays, strict=True):
            positions = [p for ranges in part for p in ranges]
            assert np.array_equal(bits_of(found), bits_of(array[:, :, positions]))


@pytest.mark.parametrize("name", range(1, len(BOXES)))
def test_every_stored_box_is_inflated_once_whatever_the_sharding(stored, name, monkeypatch):
    read, original = [], source_module.read_bits

    def recording(dataset, start, count, bits):
        read.append((start, count))
        return original(dataset, start, count, bits)

    monkeypatch.setattr(source_module, "read_bits", recording)
    with Inputs(stored[0]) as inputs:
        read_on_all_ranks(inputs.array(str(name)), Sharding.striped(LENGTH, 4), "ring", 1 << 20)
    unit = BOXES[name]
    inflated = [
        (b, h, r)
        for start, count in read
        for b in range(start[0] // unit[0], -(-(start[0] + count[0]) // unit[0]))
        for h in range(start[1] // unit[1], -(-(start[1] + count[1]) // unit[1]))
        for r in range(start[2] // unit[2], -(-(start[2] + count[2]) // unit[2]))
    ]
    grid = [-(-n // u) for n, u in zip((2, 3, LENGTH), unit, strict=False)]
    assert sorted(inflated) == [(b, h, r) for b in range(grid[0]) for h in range(grid[1]) for r in range(grid[2])]


def test_the_work_is_spread_over_the_ranks(stored):
    with Inputs(stored[0]) as inputs:
        assert len(inputs.array("1").boxes(5)) >= 5
        assert len(inputs.array("0").boxes(7)) >= 7


def test_keys_that_nobody_needs_are_not_sent(stored):
    with Inputs(stored[0]) as inputs:
        source = inputs.array("0")
        wanted = [[(range(0, 20, 2),)], []]
        arrays = [np.empty((2, 3, 10, 4), "f4")]
        ring = LocalRing(2)
        ring.drive([read_together(ring.ranks[0], Share(source, wanted, arrays)),
                    read_together(ring.ranks[1], Share(source, wanted, []))])  # fmt: skip
        assert not Share(source, wanted, arrays).is_whole
    assert np.array_equal(bits_of(arrays[0]), bits_of(stored[1][:, :, 0:20:2]))


@pytest.mark.parametrize(
    ("sharding", "name", "together"),
    [
        (Sharding.contiguous(LENGTH, 4), 0, False),
        (Sharding.zigzag(LENGTH, 2), 0, False),
        (Sharding.contiguous(LENGTH, 5), 1, False),
        (Sharding.striped(LENGTH, 4), 0, True),
        (Sharding.striped(LENGTH, 4), 1, True),
        (Sharding.contiguous(LENGTH, 4), 4, True),
        (Sharding.striped(LENGTH, 1), 1, False),
    ],
)
def test_ranks_read_together_where_each_alone_would_read_what_others_do(stored, sharding, name, together):
    with Inputs(stored[0]) as inputs:
        share = Share(inputs.array(str(name)), [[shard] for shard in sharding.shards], [])
        assert share.is_read_together() is together


def test_threshold_is_how_often_the_file_would_be_read(stored, monkeypatch):
    monkeypatch.setattr(reading, "WORTH_SENDING", 4.5)
    with Inputs(stored[0]) as inputs:
        wanted = [[shard] for shard in Sharding.striped(LENGTH, 4).shards]
        assert not Share(inputs.array("0"), wanted, []).is_read_together()
