"""A ring over MPI: a periodic Cartesian communicator of its own, non-blocking messages of plain bytes.

Every wait of a ring has a limit: a late rank ends the job with its name instead of hanging it. Only to make a ring
takes calls that MPI does not let one poll (comm/deadline.py is for those); they begin when all ranks are there.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from ringmpi.comm.deadline import deadline, too_late
from ringmpi.comm.held import Held
from ringmpi.comm.launcher import launched_local_rank, local_rank_of
from ringmpi.comm.protocol import Flight, Message, Tag
from ringmpi.comm.waiting import comes
from ringmpi.core.rank_name import rank_name
from ringmpi.errors import RingError
from ringmpi.process.cgroup import limits
from ringmpi.process.cores import own_cores, threads_for

PART_BYTES = 1 << 30  # MPI libraries count in C ints and break near 2^31
IDLE_TESTS = 2  # tests in a row that move nothing, after which there is nothing to move for now
LESS_INFORMED = 2.0  # times the limit of rank 0
MAKING = "making the ring"
MOST_TESTS = 1000  # of one look, whatever the clock says: its caller has other things to do, and a deadline to keep
MOVED = 10.0  # times the quickest test, from which one has moved something; some that move nothing take 8 times it


class MPIRing:
    """The communicator of this process: `rank` is its position in the ring, which may differ from its launch rank.

    Parameters
    ----------
    comm : mpi4py communicator
        Collective: every rank of it must construct its MPIRing.
    position : int
        Where this rank sits in the ring; the positions of all ranks are 0 .. size - 1.
    timeout : float
        Seconds that a rank waits for the others before it raises RingError; 0: forever.

    Raises
    ------
    RingError
        If not all ranks arrive to make the ring.
    """

    def __init__(self, comm: MPI.Intracomm, position: int, *, timeout: float = 0.0) -> None:
        self.timeout = timeout
        self.part_bytes = PART_BYTES
        self.takes_device_memory = False  # until it is proved (environment/device_messages.py)
        self.devices: list[str] | None = None  # of all ranks, where they compute on GPUs
        self.node = MPI.Get_processor_name()
        if not comes(comm.Ibarrier().Test, timeout):
            raise RingError(too_late(timeout, MAKING))
        with deadline(timeout, MAKING):
            # Neither Open MPI nor MPICH reorders ranks in Create_cart: Split does it, by key.
            ordered = MPI.Intracomm(comm.Split(0, key=position))
            self.cart = ordered.Create_cart([comm.size], periods=[True], reorder=False)
            ordered.Free()
            origins = self.cart.allgather((comm.rank, self.node))
            self.local_rank, self.threads, self.node_cores = _share_of_node(comm)
        self.launch_ranks = [rank for rank, _ in origins]
        self.nodes = [node for _, node in origins]

    @property
    def rank(self) -> int:
        """Position in the ring."""
        return int(self.cart.rank)

    @property
    def size(self) -> int:
        """Ranks in the ring."""
        return int(self.cart.size)

    def called(self, rank: int) -> str:
        """The rank at a ring position, for messages."""
        return rank_name(rank, self.launch_ranks[rank], self.nodes[rank])

    def reordered(self, position: int) -> MPIRing:
        """A ring of the same processes, with this one at `position`. Collective; this ring stays as it is."""
        ring = MPIRing(self.cart, position, timeout=self.timeout)
        ring.launch_ranks = [self.launch_ranks[rank] for rank in ring.launch_ranks]
        ring.local_rank = self.local_rank  # it has opened a GPU by that, perhaps
        return ring

    def close(self) -> None:
        """Free the communicator. Collective."""
        self.cart.Free()

    def start(self, sends: list[Message], receives: list[Message]) -> Flight:
        """Post all receives, then all sends. The arrays are contiguous and complete; none is touched until landed."""
        held = Held(*(message.array for message in (*sends, *receives)))
        incoming = [
            (message.peer, len(part), self.cart.Irecv([part, MPI.BYTE], message.peer, message.tag))
            for message in receives
            for part in self._parts(message)
        ]
        outgoing = [
            (message.peer, self.cart.Isend([part, MPI.BYTE], message.peer, message.tag))
            for message in sends
            for part in self._parts(message)
        ]
        return _MPIFlight(incoming, outgoing, held)

    def drive(
        self,
        loop: Iterator[Flight],
        during: Callable[[], str] = lambda: "the ring",
        look: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run a loop to its end, waiting for each hop. `during` says where it is, for the message of a late rank.

        `look` is called again and again in a wait; where it has had something to do, the wait starts again.
        """
        for flight in loop:
            self._wait(flight.landed, partial(self._late, flight), during, look=look)

    def await_first(
        self,
        flight: Flight,
        during: Callable[[], str],
        *,
        patience: float = 1.0,
        look: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wait, on rank 0 for the others and elsewhere for rank 0.

        Only rank 0 knows who is late, so the others are more patient: it is to be the one to say so.
        """
        if self.rank == 0:
            self._wait(flight.landed, partial(self._late, flight), during, patience=patience, look=look)
        else:
            longer = LESS_INFORMED * patience
            self._wait(flight.landed, lambda: "rank 0, or one that it waits for,", during, patience=longer, look=look)

    def exchange(self, item: Any, during: str = "an agreement", *, patience: float = 1.0) -> list[Any]:
        """Give every rank's (small, picklable) item to all, in ring order. Collective."""
        self._call_the_roll(during, patience)
        data, sizes, mine = pickle.dumps(item), np.empty(self.size, np.int64), np.empty(1, np.int64)
        mine[0] = len(data)
        with Held(mine, sizes):
            self._finish(self.cart.Iallgather([mine, MPI.INT64_T], [sizes, MPI.INT64_T]), during)
        everything, counts = _room_for(sizes)
        with Held(data, everything):
            self._finish(self.cart.Iallgatherv([data, MPI.BYTE], [everything, counts, MPI.BYTE]), during)
        return _unpickled(everything, counts)

    def collect(self, item: Any, during: str, *, patience: float = 1.0) -> list[Any]:
        """Give every rank's (picklable) item to rank 0, in ring order; an empty list elsewhere. Collective."""
        self._call_the_roll(during, patience)
        data, sizes, mine = pickle.dumps(item), np.zeros(self.size, np.int64), np.empty(1, np.int64)
        mine[0] = len(data)
        with Held(mine, sizes):
            self._finish(self.cart.Igather([mine, MPI.INT64_T], [sizes, MPI.INT64_T]), during)
        everything, counts = _room_for(sizes if self.rank == 0 else sizes[:0])
        target = [everything, counts, MPI.BYTE] if self.rank == 0 else None
        with Held(data, everything):
            self._finish(self.cart.Igatherv([data, MPI.BYTE], target), during)
        return _unpickled(everything, counts)

    def _call_the_roll(self, during: str, patience: float) -> None:
        """Let rank 0 know who has come: a collective that never ends names nobody, this does."""
        if self.rank == 0:
            calls = [self.cart.Irecv([bytearray(0), MPI.BYTE], peer, Tag.ROLL_CALL) for peer in range(1, self.size)]
            flight = _MPIFlight([(peer, 0, call) for peer, call in enumerate(calls, 1)], [])
            self.await_first(flight, lambda: during, patience=patience)
            told = [(peer, self.cart.Isend([b"", MPI.BYTE], peer, Tag.ROLL_CALL)) for peer in range(1, self.size)]
            flight = _MPIFlight([], told)
        else:
            self.cart.Isend([b"", MPI.BYTE], 0, Tag.ROLL_CALL).Free()
            flight = _MPIFlight([(0, 0, self.cart.Irecv([bytearray(0), MPI.BYTE], 0, Tag.ROLL_CALL))], [])
        self.await_first(flight, lambda: during, patience=patience)

    def _finish(self, request: MPI.Request, during: str) -> None:
        with Held(request):  # its counts
            self._wait(request.Test, lambda: "at least one rank", lambda: during)

    def _late(self, flight: Flight) -> str:
        """Who has not answered, in words."""
        return " and ".join(map(self.called, flight.waiting_for())) or "at least one rank"

    def _parts(self, message: Message) -> list[Any]:
        on_device = hasattr(message.array, "__cuda_array_interface__")  # bytes already (comm/device_ring.py)
        raw = message.array if on_device else memoryview(message.array.reshape(-1).view(np.uint8))
        return [raw[start : start + self.part_bytes] for start in range(0, len(raw), self.part_bytes)]

    def _wait(
        self,
        landed: Callable[[], bool],
        late: Callable[[], str],
        during: Callable[[], str],
        *,
        patience: float = 1.0,
        look: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wait until `landed`, or raise RingError naming who is `late`."""
        seconds = self.timeout * patience
        if not comes(landed, seconds, look):
            raise RingError(
                f"{late()} did not answer {self.called(self.rank)} for {seconds:g} s (at: "
                f"{during()}). Look for a stopped or overloaded process there; a longer timeout "
                f"waits longer (--timeout, Ring(timeout=...))."
            )


class _MPIFlight:
    """The requests of one hop, as (peer, bytes that it should bring or None, request), and how many have completed."""

    def __init__(
        self,
        incoming: list[tuple[int, int, MPI.Request]],
        outgoing: list[tuple[int, MPI.Request]],
        held: Held | None = None,
    ) -> None:
        self._held = held
        self._requests: list[tuple[int, int | None, MPI.Request]] = [*incoming]
        self._requests += [(peer, None, request) for peer, request in outgoing]
        self._completed = 0
        self._quickest = float("inf")

    def landed(self) -> bool:
        """Test again while that moves something: over TCP one test pushes no more than a few packets of a transfer.

        MPI does not say whether it moved anything, but such a test takes many times as long as the quickest one. So
        may the first, which fetches code that a kernel has driven out of the caches: it does not count. Time on the
        core does: a library may yield it to other processes. Once in some million readings that clock has stood still,
        and nothing is quicker than that.
        """
        idle, before = 0, time.thread_time()
        for nth in range(MOST_TESTS):
            if self._test():
                return True
            seconds = -before + (before := time.thread_time())
            self._quickest = min(self._quickest, seconds or self._quickest)
            idle = idle + 1 if nth and seconds <= MOVED * self._quickest else 0
            if idle == IDLE_TESTS:
                break
        return False

    def _test(self) -> bool:
        """Whether all have completed. To test the first that has not pushes all."""
        status = MPI.Status()
        for peer, expected, request in self._requests[self._completed :]:
            try:
                if not request.Test(status):
                    return False
            except MPI.Exception as error:
                raise RingError(
                    f"a message of the ring failed: {error}. Ranks that disagree send different lengths."
                ) from error
            if expected is not None and (found := status.Get_count(MPI.BYTE)) != expected:
                raise RingError(f"rank {peer} sent {found} bytes where {expected} were expected.")
            self._completed += 1
        if self._held is not None:
            self._held.release()
        return True

    def waiting_for(self) -> list[int]:
        return sorted({peer for peer, _, request in self._requests[self._completed :] if not request.Test()})


def _share_of_node(comm: MPI.Intracomm) -> tuple[int, int, int]:
    """Which rank of its node this one is, its threads beside the others, and the cores of all these. Collective."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    everyone, told = zip(*node.allgather((own_cores(), launched_local_rank(os.environ))), strict=True)
    local_rank = local_rank_of(told, node.rank)
    node.Free()
    threads = threads_for(own_cores(), everyone, os.environ, limits().cpus)
    return local_rank, threads, len({core for cores in everyone for core in cores})


def _room_for(sizes: NDArray[np.int64]) -> tuple[bytearray, tuple[list[int], list[int]]]:
    """A buffer for so many pickles one after the other, with their lengths and places."""
    return bytearray(int(sizes.sum())), (sizes.tolist(), (np.cumsum(sizes) - sizes).tolist())


def _unpickled(everything: bytearray, counts: tuple[list[int], list[int]]) -> list[Any]:
    return [pickle.loads(everything[start : start + size]) for size, start in zip(*counts, strict=True)]
