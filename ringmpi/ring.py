"""Ring: the ranks of an MPI communicator, each given its place. The place decides who owns what."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ringmpi.backends import get_backend
from ringmpi.backends.base import Backend
from ringmpi.comm.deadline import TIMEOUT_SECONDS
from ringmpi.errors import RingError
from ringmpi.placing.wishes import LAUNCHER, Placement

if TYPE_CHECKING:
    from mpi4py import MPI

    from ringmpi.comm.mpi import MPIRing
    from ringmpi.topology.ring_choice import RingChoice


class Ring:
    """The ranks of `comm` on a periodic ring. Collective.

    Parameters
    ----------
    comm : mpi4py communicator, optional
        Default: COMM_WORLD. The ring has a communicator of its own, so `comm` stays free for other messages.
    placement : str, path, or sequence of paths
        "launcher": ring position = rank in `comm`, the order in which the launcher started the processes. "auto": the
        best ring by what is known (docs/topology.md), else that order. "measure": by rates measured between hosts,
        or kept from before. Paths: by what these files say about the network. The same on all ranks.
    timeout : float
        Seconds to wait for a late rank before RingError; 0: forever.

    Attributes
    ----------
    transport : MPIRing
        Moves the bytes (comm/mpi.py).
    threads : int
        Cores that this rank may use: its share of the node, or OMP_NUM_THREADS.
    local_rank : int
        Which of the ranks of its node this one is, also among those of other rings of the job where the launcher says
        so: GPUs are assigned by it.
    choice : RingChoice or None
        What determined the ring, and what it costs; None where only the order of the launcher is known.

    Raises
    ------
    RingError
        If a launcher started several processes but MPI gives each its own job.
    TopologyError
        On all ranks: if a file cannot be understood, or has none of the hosts.
    """

    def __init__(
        self, comm: MPI.Intracomm | None = None, *, placement: Placement = LAUNCHER, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        from ringmpi.comm.mpi import MPIRing  # here, so that importing ringmpi starts no MPI
        from ringmpi.comm.world import members

        comm = members(comm)
        self.choice: RingChoice | None = None
        self._left = ""  # the call that this rank has left, and by what
        self.transport = MPIRing(comm, comm.rank, timeout=timeout)
        self.threads, self.local_rank = self.transport.threads, self.transport.local_rank
        if placement != LAUNCHER:
            self.place(placement)

    def place(self, placement: Placement) -> None:
        """Give each rank its place, as the parameter of that name says, and a new `transport`. Collective.

        For a ring in the order of the launcher, before anything is laid out over it: the place decides who owns what.
        """
        from ringmpi.placing.places import choose_places  # here: it reads many kinds of files

        with self.call("placing the ranks") as launched:
            self.choice = choose_places(launched, placement, os.environ)
            if self.choice is not None and self.choice.moved:
                self.transport = launched.reordered(self.choice.order.index(launched.rank))
                launched.close()

    @contextmanager
    def call(self, name: str) -> Iterator[MPIRing]:
        """A collective call on the ring, over the transport that is given.

        An exception that not all ranks raise leaves the others in the midst of the call, and its messages under way:
        what came after would meet them.

        Raises
        ------
        RingError
            If such an exception has ended a call before.
        """
        if self._left:
            raise RingError(
                f"this ring cannot be used any more: {self._left} on this rank, and other ranks may still wait in "
                f"that call. End the job, or make a new Ring on all ranks."
            )
        try:
            yield self.transport
        except BaseException as error:
            if not getattr(error, "on_all_ranks", False):
                self._left = f"{name} was ended by {type(error).__name__}"
            raise

    @property
    def rank(self) -> int:
        """Position of this process in the ring."""
        return self.transport.rank

    @property
    def size(self) -> int:
        """Ranks in the ring."""
        return self.transport.size

    def backend(self, name: str, *, reproducible: bool = False, records: bool = False) -> Backend:
        """What computes on this rank: `get_backend` with its share of cores, on the GPU assigned to it."""
        return get_backend(
            name, threads=self.threads, local_rank=self.local_rank, reproducible=reproducible, records=records
        )

    def close(self) -> None:
        """Free the communicator of the ring; MPI libraries have some 2,000. Collective; the last call on a ring.

        It stays where a call was left in its midst: messages are under way on it.
        """
        if not self._left:
            self.transport.close()

    def __enter__(self) -> Ring:
        """Use as `with Ring(comm) as ring`."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Close, unless an error makes it likely that the other ranks are not here."""
        if error is None:
            self.close()
