"""The emulated GPU: the device of the backend on a CuPy that is emulated, kernels built by g++ (libraries.py)."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from ringmpi.backends.cuda.attend import CudaBackend
from ringmpi.backends.cuda.cupy_device import CupyDevice
from tests.cuda.emulated_cupy import GIB, EmulatedCupy
from tests.cuda.libraries import LibraryRunner
from tests.cuda.numpy_runner import NumpyRunner

EMULATED = bool(os.environ.get("EMULATED"))  # the tests of all backends are then of this one; "watched": looked at


class EmulatedDevice(CupyDevice):
    """A device without a GPU; it does its work as late as it may.

    Parameters
    ----------
    watch : bool
        Kernels are looked at: races, bounds.
    nbytes : int
        Its memory.

    Attributes
    ----------
    cupy : EmulatedCupy
        What is counted there: `used`, `allocations`, `pinned` bytes, `freed_early`.
    """

    def __init__(self, *, watch: bool = False, runner: Any = None, nbytes: int = 4 * GIB) -> None:
        self.cupy = EmulatedCupy(runner or LibraryRunner(watch=watch), nbytes=nbytes)
        super().__init__(self.cupy, 0, self.cupy.compiled)


@cache
def device() -> EmulatedDevice:
    """One for all tests; where kernels are not to be built (EMULATED is not set) NumPy does their work."""
    return EmulatedDevice(watch=os.environ.get("EMULATED") == "watched", runner=None if EMULATED else NumpyRunner())


def emulated(threads: int = 1, *, rounded: bool = False, local_rank: int = 0, **tiles: int) -> CudaBackend:
    """The CUDA backend on it; its threads and tiles are no choice."""
    return CudaBackend(device(), rounded=rounded)
