"""What bounds the native kernels on this processor (ceilings.cpp): each call keeps one thread busy for some ms."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.native.shared_library import HOW_TO_GET, choose, library
from ringmpi.errors import BackendError

MOST_LANES = 16
FMA_ROUNDS = 1 << 20


def fused_multiply_adds() -> float:
    """Do many from registers, on the widest instruction set -> how many flops that were.

    Raises
    ------
    BackendError
        If the libraries are not built.
    """
    run = _function("ringmpi_fma")
    run.restype = ctypes.c_double
    last = (ctypes.c_float * MOST_LANES)()
    return float(run(ctypes.c_int64(FMA_ROUNDS), ctypes.c_float(0.999), ctypes.c_float(0.001), last))


def exp2(x: NDArray[np.float32], y: NDArray[np.float32], calls: int) -> None:
    """Y = 2^x, `calls` times.

    Parameters
    ----------
    x, y : float32 array [n]
        At addresses that 64 divides; n a multiple of 16.

    Raises
    ------
    BackendError
        If the libraries are not built.
    """
    run = _function("ringmpi_exp2")
    run.restype = None
    pointers = (array.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) for array in (x, y))
    run(*pointers, ctypes.c_int64(len(x)), ctypes.c_int64(calls))


def _function(name: str) -> Any:
    found = getattr(library(choose(None)), name, None)
    if found is None:
        raise BackendError(f"the native kernels are from an older version, without {name}. {HOW_TO_GET}")
    return found
