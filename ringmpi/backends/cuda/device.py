"""The device that a backend computes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ringmpi.backends.cuda.instances import Instance

Launch = Callable[..., None]  # (grid, block, arguments, shared_mem=bytes), as cupy.RawKernel


class Device(Protocol):
    """Memory and kernels.

    Attributes
    ----------
    cupy : module
        CuPy, or what has its call shape: asarray, zeros, arrays with `data.ptr` and `get`, cuda.Event.
    """

    cupy: Any

    def kernel(self, instance: Instance) -> Launch:
        """The compiled kernel, ready to launch."""
        ...
