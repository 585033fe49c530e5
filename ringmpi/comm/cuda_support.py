"""What the MPI library says of GPU memory. What it says may be wrong: environment/device_messages.py tries it."""

from __future__ import annotations

import ctypes
from contextlib import suppress

from mpi4py import MPI

CUDA = 0  # MPIX_GPU_SUPPORT_CUDA of MPICH's mpi.h


def says_cuda_aware() -> bool | None:
    """Whether the library says that it takes addresses of GPU memory; None: it does not say.

    Source
    ------
    Open MPI: MPIX_Query_cuda_support (mpi-ext.h). MPICH: MPIX_GPU_query_support.
    """
    for name in (MPI.__file__, None):  # functions of the library that mpi4py is linked to, or has loaded
        try:
            library = ctypes.CDLL(name)
        except OSError:  # mpi4py may be built into the interpreter
            continue
        with suppress(AttributeError):
            return bool(library.MPIX_Query_cuda_support())
        with suppress(AttributeError):
            query, yes = library.MPIX_GPU_query_support, ctypes.c_int(0)
            return bool(query(CUDA, ctypes.byref(yes)) == MPI.SUCCESS and yes.value)
    return None
