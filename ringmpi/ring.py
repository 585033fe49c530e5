"""Ring: the ranks of an MPI communicator, each given its place. The place decides who owns what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringmpi.errors import RingError

if TYPE_CHECKING:
    from mpi4py import MPI

PLACEMENTS = ("launcher",)
TIMEOUT_SECONDS = 600.0


class Ring:
    """The ranks of `comm` on a periodic ring. Collective.

    Parameters
    ----------
    comm : mpi4py communicator, optional
        Default: COMM_WORLD. The ring has a communicator of its own, so `comm` stays free for other messages.
    placement : str
        "launcher": ring position = rank in `comm`, the order in which the launcher started the processes.
    timeout : float
        Seconds to wait for a late rank before RingError; 0: for ever.

    Attributes
    ----------
    transport : MPIRing
        Moves the bytes (comm/mpi.py).
    threads : int
        Cores that this rank may use: its share of the node, or OMP_NUM_THREADS.

    Raises
    ------
    RingError
        If the placement is not known.
    """

    def __init__(
        self, comm: MPI.Intracomm | None = None, *, placement: str = "launcher", timeout: float = TIMEOUT_SECONDS
    ) -> None:
        from ringmpi.comm.mpi import MPIRing, world  # here, so that importing ringmpi starts no MPI

        if placement not in PLACEMENTS:
            raise RingError(f"placement {placement!r} is not in this version; known is {', '.join(PLACEMENTS)}.")
        comm = comm if comm is not None else world()
        self.placement = placement
        self.transport = MPIRing(comm, comm.rank, timeout=timeout)
        self.threads = self.transport.threads

    @property
    def rank(self) -> int:
        """Position of this process in the ring."""
        return self.transport.rank

    @property
    def size(self) -> int:
        """Ranks in the ring."""
        return self.transport.size

    def close(self) -> None:
        """Free the communicator of the ring; MPI libraries have some 2,000. Collective; the last call on a ring."""
        self.transport.close()

    def __enter__(self) -> Ring:
        """Use as `with Ring(comm) as ring`."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Close, unless an error makes it likely that the other ranks are not here."""
        if error is None:
            self.close()
