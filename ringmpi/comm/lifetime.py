"""MPI from start to end, within deadlines.

mpi4py holds the lock of the interpreter while MPI starts and ends, so where a rank never comes the clock of a deadline
(comm/deadline.py) would stand still. Called through ctypes, which gives the lock away, the same two functions can be
ended.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mpi4py

from ringmpi.comm.deadline import deadline
from ringmpi.comm.signals import held_back
from ringmpi.errors import RingError


@contextmanager
def mpi_job(seconds: float) -> Iterator[None]:
    """Start MPI, and end it after the block; either may take so many seconds (0: any time) before the job is ended.

    MPI that runs already belongs to whoever started it, who ends it too. An error that not all ranks have in common
    leaves MPI as it is: the others are not here to end it.

    Raises
    ------
    RingError
        If MPI does not start.
    """
    mpi4py.rc.initialize = False
    from mpi4py import MPI

    if MPI.Is_initialized():
        yield
        return
    library = ctypes.CDLL(MPI.__file__)  # finds what mpi4py is linked to
    with held_back(), deadline(seconds, "starting MPI"):
        _start(library)
    try:
        yield
    except BaseException as error:
        if not getattr(error, "on_all_ranks", False):
            raise
        _end(library, seconds, "ending MPI")
        raise
    _end(library, seconds, "ending MPI, after all work was done,")


def _start(library: Any) -> None:
    """What mpi4py does when it is imported, but for the lock."""
    from mpi4py import MPI

    granted = ctypes.c_int()
    if library.MPI_Init_thread(None, None, int(MPI.THREAD_MULTIPLE), ctypes.byref(granted)):
        raise RingError("MPI failed to start; see its messages above. Look at `ringmpi info`.")
    for comm in (MPI.COMM_SELF, MPI.COMM_WORLD):
        comm.Set_errhandler(MPI.ERRORS_RETURN)  # mpi4py makes exceptions of what is returned


def _end(library: Any, seconds: float, what: str) -> None:
    with deadline(seconds, what):
        library.MPI_Finalize()
