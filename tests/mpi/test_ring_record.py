"""The record of rows on real ranks: that of the plain formulas, whatever the sharding and the schedule."""

import numpy as np
import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from ringmpi import Mask, Record, Recording, Ring, Sharding, attention, ring_attention
from ringmpi.core.scoring import Scoring
from ringmpi.errors import RingError, ShapeError
from tests.mpi.test_ring import qkv, whole
from tests.tolerances import assert_record

RANK_COUNTS = [1, 2, 3, 4, 5]
LENGTH = 211
MASKS = [Mask.causal(), Mask.window(50, 9) | Mask.sinks(4), Mask.documents([60, 0, 100, 51], within=Mask.causal())]
SINKS = np.array([0.5, -np.inf, 2.0, -1.0])


@pytest.fixture(scope="module")
def ring():
    return Ring(MPI.COMM_WORLD, timeout=30)


def recorded(ring, arrays, sharding, recording, **options):
    """On real ranks, put together on every rank."""
    mine = [sharding.take(array, ring) for array in arrays]
    record = ring_attention(*mine, ring=ring, sharding=sharding, record=recording, **options).record
    return Record(*(whole(ring, sharding, array)[None] for array in record.arrays))


@pytest.mark.parallel(RANK_COUNTS)
@pytest.mark.parametrize("schedule", ["ring", "bidirectional", "all-gather", "broadcast"])
@pytest.mark.parametrize("name", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_real_ranks_record_what_the_formulas_say(ring, mask, name, schedule):
    arrays, recording = qkv(LENGTH, LENGTH), Recording(5)
    sharding = getattr(Sharding, name)(LENGTH, ring.size)
    found = recorded(ring, arrays, sharding, recording, mask=mask, schedule=schedule, sink_logits=SINKS)
    q, k, _ = (array[None] for array in arrays)
    assert_record(found, q, k, mask.allowed(LENGTH, LENGTH), Scoring(0.25), recording, sink_logits=SINKS)


@pytest.mark.parallel(RANK_COUNTS)
def test_processes_record_the_bits_of_the_simulated_ring(ring):
    arrays = qkv(698, 698, np.float32)
    found = recorded(ring, arrays, Sharding.zigzag(698, ring.size), True, mask=Mask.causal())
    simulated = attention(*arrays, mask=Mask.causal(), ranks=ring.size, sharding="zigzag", record=True).record
    for mine, theirs in zip(found.arrays, simulated.arrays, strict=True):
        parallel_assert(mine[0].tobytes() == theirs.tobytes())


@pytest.mark.parallel([2, 3])
def test_ranks_that_record_otherwise_are_told_so(ring):
    sharding = Sharding.contiguous(30, ring.size)
    mine = [sharding.take(array, ring) for array in qkv(30, 30)]
    with pytest.raises(RingError, match=r"gave a different problem \(mask, .* scores, record, or backend\)"):
        ring_attention(*mine, ring=ring, sharding=sharding, record=Recording(1 + ring.rank))
    with pytest.raises(ShapeError, match="it must be True, False, or a Recording"):
        ring_attention(*mine, ring=ring, sharding=sharding, record="rows" if ring.rank else True)
