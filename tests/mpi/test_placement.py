"""Ranks that sit elsewhere than the launcher has put them: ownership follows the ring, results do not change."""

import numpy as np
import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from ringmpi import Mask, Ring, Sharding
from ringmpi.comm.agreement import together
from ringmpi.comm.protocol import Message, Tag
from ringmpi.errors import RingError, ShapeError, TopologyError
from tests.mpi.test_ring import judge, qkv
from tests.topology.texts import TREE

WORLD = MPI.COMM_WORLD
INTRACOMM = MPI.Intracomm  # as it is before a test replaces it
LEAVES = ["n01", "n05", "n02", "n06", "n03", "n07", "n04"]  # in TREE by turns on one leaf and the other
PLACED = {3: [0, 2, 1], 4: [0, 2, 1, 3], 5: [0, 2, 4, 1, 3], 7: [0, 2, 4, 6, 1, 3, 5]}
MASK = Mask.causal() & Mask.window(70, 0)


@pytest.fixture
def shared(tmp_path_factory):
    """A folder that all ranks see."""
    return WORLD.bcast(tmp_path_factory.mktemp("shared") if WORLD.rank == 0 else None)


def launched_on(hosts):
    """A ring whose ranks believe that they run on `hosts`."""
    ring = Ring(WORLD, timeout=30)
    ring.transport.node = hosts[WORLD.rank]
    return ring


def placed(shared, hosts=LEAVES, text=TREE):
    ring, path = launched_on(hosts), shared / "topology.conf"
    if WORLD.rank == 0:
        path.write_text(text)
    ring.place(path)
    return ring


def is_exact(ring, schedule="ring"):
    judge(ring, qkv(211, 211), MASK, Sharding.zigzag(211, ring.size), schedule=schedule)


@pytest.mark.parallel([4, 5, 7])
@pytest.mark.parametrize("schedule", ["ring", "bidirectional", "all-gather", "broadcast"])
def test_a_placed_ring_is_exact(shared, schedule):
    with placed(shared) as ring:
        parallel_assert(ring.choice.order == tuple(PLACED[ring.size]))
        parallel_assert(ring.transport.launch_ranks == PLACED[ring.size])
        parallel_assert(PLACED[ring.size][ring.rank] == WORLD.rank)
        is_exact(ring, schedule)


@pytest.mark.parallel([5])
def test_messages_tell_the_place_and_the_launch_rank_apart(shared):
    with placed(shared) as ring:
        node = MPI.Get_processor_name()
        parallel_assert(ring.transport.called(0) == f"rank 0 (node {node})")
        parallel_assert(ring.transport.called(1) == f"rank 1 (launch rank 2, node {node})")

        def fails_on_launch_rank_2():
            if WORLD.rank == 2:
                raise ShapeError("too short")

        with pytest.raises(ShapeError, match=r"rank 1 \(launch rank 2, node .+\): too short"):
            together(ring.transport, "trying", fails_on_launch_rank_2)


@pytest.mark.parallel([3, 5])
def test_a_ring_that_is_placed_again_still_knows_who_was_launched_where():
    once = Ring(WORLD, timeout=30).transport.reordered((WORLD.rank + 1) % WORLD.size)
    twice = once.reordered((once.rank + 1) % WORLD.size)
    parallel_assert(once.launch_ranks[once.rank] == twice.launch_ranks[twice.rank] == WORLD.rank)
    parallel_assert(twice.rank == (WORLD.rank + 2) % WORLD.size)


@pytest.mark.parallel([2, 3, 4])
def test_a_file_that_knows_no_host_is_refused_on_all_ranks(shared):
    with pytest.raises(TopologyError, match=r"topology\.conf: knows none of the hosts of this job: a, b") as raised:
        placed(shared, hosts="abcdefg")
    parallel_assert(raised.value.on_all_ranks)


@pytest.mark.parallel([4])
def test_hosts_that_a_file_does_not_know_follow_one_another(shared, caplog):
    with placed(shared, hosts=["n01", "stray", "n05", "n01"]) as ring:
        parallel_assert(ring.choice.unplaced == ("stray",))
        parallel_assert(("stray" in caplog.text) == (WORLD.rank == 0))
        is_exact(ring)


@pytest.mark.parallel([2, 3])
def test_a_file_that_is_not_there_is_an_error_of_all(shared):
    with pytest.raises(TopologyError, match="cannot be read") as raised:
        launched_on(LEAVES).place(shared / "mesure")
    parallel_assert(raised.value.on_all_ranks)


@pytest.mark.parallel([2, 3])
def test_ranks_that_want_different_placements_are_told(shared):
    with pytest.raises(RingError, match=r"rank 1 \(node .+\) gave a different placement from rank 0"):
        launched_on(LEAVES).place("launcher" if WORLD.rank == 1 else "auto")


@pytest.mark.parallel([1, 2, 4])
def test_where_nothing_is_at_hand_the_launcher_decides():
    with Ring(WORLD, placement="auto", timeout=30) as ring:
        parallel_assert(ring.choice is None and ring.rank == WORLD.rank)


@pytest.mark.parallel([4])
def test_ranks_that_share_hosts_by_turns_come_together():
    ring = launched_on(["a", "b", "a", "b"])
    ring.place("auto")
    parallel_assert(ring.transport.launch_ranks == [0, 2, 1, 3])
    is_exact(ring)


@pytest.mark.parallel([3, 4])
def test_what_slurm_tells_each_task_is_read_from_its_own_environment(monkeypatch):
    host = LEAVES[WORLD.rank]
    monkeypatch.setenv("SLURM_TOPOLOGY_ADDR", f"spine.leaf{WORLD.rank % 2}.{host}")
    monkeypatch.setenv("SLURM_TOPOLOGY_ADDR_PATTERN", "switch.switch.node")
    ring = launched_on(LEAVES)
    ring.place("auto")
    parallel_assert(ring.choice.source == "SLURM_TOPOLOGY_ADDR")
    parallel_assert(ring.transport.launch_ranks == (PLACED[4] if ring.size == 4 else [0, 1, 2]))
    is_exact(ring)


@pytest.mark.parallel([2, 3, 5])
def test_measured_rates_place_and_are_kept(shared, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared))
    first, again = launched_on(LEAVES), launched_on(LEAVES)
    caplog.set_level("INFO", "ringmpi")
    first.place("measure")
    (kept,) = (shared / "ringmpi").iterdir()
    again.place("measure")
    parallel_assert((first.choice.source, again.choice.source) == ("measured rates", str(kept)))
    parallel_assert(again.choice.hosts == WORLD.size and again.choice.order == first.choice.order)
    is_exact(first)


class Permuting(MPI.Intracomm):
    """What a machine may do that gives its ranks places of its own, asked or not."""

    def Split(self, color=0, key=0):  # noqa: N802 - the name of MPI
        return super().Split(color, key=(5 * self.rank + 2) % 7)


class Reordering(MPI.Intracomm):
    """The same in the Cartesian communicator."""

    def Split(self, color=0, key=0):  # noqa: N802
        return Reordering(super().Split(color, key=key))

    def Create_cart(self, *arguments, **options):  # noqa: N802
        return INTRACOMM(super().Split(0, key=-self.rank)).Create_cart(*arguments, **options)


@pytest.mark.parallel([2, 3, 5, 7])
@pytest.mark.parametrize("kind", [Permuting, Reordering])
@pytest.mark.parametrize("schedule", ["ring", "bidirectional", "broadcast"])
def test_an_mpi_that_permutes_ranks_changes_no_result(monkeypatch, kind, schedule):
    if kind is Reordering:
        monkeypatch.setattr("ringmpi.comm.mpi.MPI.Intracomm", kind)
    with Ring(kind(WORLD), timeout=30) as ring:
        everyone = WORLD.allgather(ring.rank)
        parallel_assert(sorted(everyone) == list(range(WORLD.size)))
        parallel_assert(everyone != list(range(WORLD.size)))
        parallel_assert([everyone[launched] for launched in ring.transport.launch_ranks] == list(range(WORLD.size)))
        is_exact(ring, schedule)


@pytest.mark.parallel([4, 5])
@pytest.mark.parametrize("schedule", ["ring", "bidirectional"])
def test_rings_on_rows_and_columns_of_a_grid_do_not_disturb_each_other(schedule):
    """A message of each ring is under way while the other one works."""
    grid = WORLD.Create_cart(MPI.Compute_dims(WORLD.size, 2), periods=[True, True])
    with Ring(grid.Sub([False, True]), timeout=30) as row, Ring(grid.Sub([True, False]), timeout=30) as column:
        parallel_assert(row.size * column.size == WORLD.size)
        for one, other in ((row, column), (column, row)):
            right, left = (one.rank + 1) % one.size, (one.rank - 1) % one.size
            sent, got = np.full(1 << 20, one.rank, np.uint8), np.empty(1 << 20, np.uint8)
            flight = one.transport.start([Message(right, Tag.UP, sent)], [Message(left, Tag.UP, got)])
            is_exact(other, schedule)
            one.transport.drive(iter([flight]))
            parallel_assert((got == left).all())
            is_exact(one, schedule)
