"""A ring on which a rank has left a call in its midst is used no more there, and what MPI still writes is not freed."""

import gc

import numpy as np
import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from ringmpi import Mask, Ring, Sharding, attention, ring_attention, ring_attention_backward, ring_attention_map
from ringmpi.comm.held import Held
from ringmpi.comm.mpi import MPIRing
from ringmpi.errors import RingError, ShapeError

WORLD = MPI.COMM_WORLD
LENGTH = 6000  # 1 MiB a piece and more: sent when the receiver asks for it
RANK_COUNTS = [2, 3]


def arrays(seed):
    return np.random.default_rng(seed).standard_normal((3, 4, LENGTH, 64), dtype=np.float32)


def attend(ring, seed):
    """On this rank (found, expected), of other numbers for each seed."""
    sharding, whole = Sharding.zigzag(LENGTH, ring.size), arrays(seed)
    found = ring_attention(*(sharding.take(x, ring) for x in whole), ring=ring, sharding=sharding, mask=Mask.causal())
    return found.output, sharding.take(attention(*whole, mask=Mask.causal()).output, ring)


def interrupted_at(function, nth):
    """`function`, after whose nth call Ctrl-C comes."""
    calls = iter(range(1 << 30))

    def then_stop(*args, **options):
        result = function(*args, **options)
        if next(calls) == nth:
            raise KeyboardInterrupt
        return result

    return then_stop


@pytest.mark.parallel(RANK_COUNTS)
@pytest.mark.parametrize(("where", "nth"), [("start", 0), ("_wait", 0), ("_wait", 3), ("_wait", 9)])
@pytest.mark.parametrize("everywhere", [False, True])
def test_after_an_interrupt_the_ring_is_refused_and_a_new_one_is_right(monkeypatch, where, nth, everywhere):
    ring = Ring(WORLD, timeout=2)
    with monkeypatch.context() as patch:
        if everywhere or ring.rank == 1:
            patch.setattr(MPIRing, where, interrupted_at(getattr(MPIRing, where), nth))
        with pytest.raises((KeyboardInterrupt, RingError)) as error:
            attend(ring, 1)
    left = error.type.__name__  # RingError on ranks that wait for one that has left
    assert everywhere or (left == "KeyboardInterrupt") == (ring.rank == 1)
    del error
    gc.collect()

    x = np.zeros((1, 3, 8))
    whole = {"ring": ring, "sharding": Sharding.zigzag(3 * ring.size, ring.size)}
    calls = [
        lambda: ring_attention(x, x, x, **whole),
        lambda: ring_attention_map(x, x, x[..., 0], block=1, **whole),
        lambda: ring_attention_backward(x, x, x, x, None, **whole),
        lambda: ring.place("auto"),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(MPIRing, "_wait", lambda *args, **options: pytest.fail("it waits for others"))
        for call in calls:
            with pytest.raises(RingError, match=f"cannot be used any more: ring_attention was ended by {left} on this"):
                call()
        ring.close()

    under_way = set(Held.held)
    with Ring(WORLD, timeout=30) as other:
        found, expected = attend(other, 2)
    parallel_assert(np.abs(found - expected).max() < 1e-4)
    assert Held.held <= under_way  # what has ended well holds nothing


@pytest.mark.parallel(RANK_COUNTS)
def test_what_is_under_way_stays_in_memory(monkeypatch):
    ring = Ring(WORLD, timeout=1)
    before = set(Held.held)
    monkeypatch.setattr(MPIRing, "start", interrupted_at(MPIRing.start, 0))
    with pytest.raises(KeyboardInterrupt):
        attend(ring, 1)
    (mine,) = Held.held - before
    assert all(array.nbytes > 1 << 18 for array in mine.things)


@pytest.mark.parallel(RANK_COUNTS)
def test_a_refusal_on_all_ranks_leaves_the_ring_as_it_was():
    with Ring(WORLD, timeout=30) as ring:
        x = np.zeros((1, 3, 8 + ring.rank))
        with pytest.raises((ShapeError, RingError)):
            ring_attention(x, x, x, ring=ring, sharding=Sharding.zigzag(3 * ring.size, ring.size))
        found, expected = attend(ring, 2)
        parallel_assert(np.abs(found - expected).max() < 1e-4)


@pytest.mark.parallel(RANK_COUNTS)
def test_a_rank_that_does_not_come_to_make_a_ring_is_not_waited_for_any_longer():
    comm = WORLD.Dup()
    if comm.rank:
        with pytest.raises(RingError, match="making the ring took more than 0.3 s: a rank"):
            Ring(comm, timeout=0.3)
    WORLD.Barrier()
    if comm.rank == 0:
        comm.Ibarrier().Wait()  # so that nothing stays under way; elsewhere none knows when, so `comm` is not freed
