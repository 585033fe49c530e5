"""All processes of the job, if launcher and MPI agree on who they are."""

from __future__ import annotations

import os
from collections.abc import Mapping

from mpi4py import MPI

from ringmpi.comm.launcher import launched_size
from ringmpi.errors import RingError


def world() -> MPI.Intracomm:
    """All processes of the job.

    Raises
    ------
    RingError
        If a launcher started several processes but each sees a job of its own: each would compute everything.
    """
    check_launcher(os.environ, MPI.COMM_WORLD.size)
    return MPI.COMM_WORLD


def members(comm: MPI.Intracomm | None) -> MPI.Intracomm:
    """`comm`, or for None all processes of the job. RingError as `world`, also where `comm` is MPI.COMM_WORLD."""
    if comm is None:
        return world()
    if MPI.Comm.Compare(comm, MPI.COMM_WORLD) == MPI.IDENT:
        check_launcher(os.environ, comm.size)
    return comm


def check_launcher(environment: Mapping[str, str], size: int) -> None:
    """Refuse to run as so many jobs of one rank: the launcher and the MPI library do not know each other."""
    started, name = launched_size(environment)
    if started > 1 and size == 1:
        raise RingError(
            f"the launcher started {started} processes ({name}), but MPI gives each its own job: launcher and "
            f"MPI library do not match. Use the mpirun of the library that mpi4py has loaded "
            f"({MPI.Get_library_version().split()[0]}), or srun --mpi=pmi2 or pmix as that library needs. "
            f"For a process that is meant to work alone, use Ring(MPI.COMM_SELF) in Python."
        )
