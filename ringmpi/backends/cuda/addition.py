"""Sums of gradients that have arrived, added to those made here (kernels/add.cuh)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringmpi.backends.cuda.device import Device
from ringmpi.backends.cuda.device_array import DeviceArray

THREADS = 128  # of a block, as in kernels/add.cuh
MOST_BLOCKS = 4096  # each goes on with what none has done
ARGUMENT = np.dtype([("to", np.uint64), ("other", np.uint64), ("count", np.int64), ("blocks", np.int64)], align=True)
_NUMBERS: dict[np.dtype, str] = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}


@dataclass(frozen=True)
class Addition:
    """The kernel that adds numbers of a dtype of sums; looks like instances.Instance to a compiler."""

    dtype: np.dtype

    source = "add.cuh"
    shared_bytes = 0

    @property
    def name(self) -> str:
        """The C++ expression that names it."""
        return f"ringmpi::add<{_NUMBERS[self.dtype]}>"

    @property
    def label(self) -> str:
        """The same, to read."""
        return f"add-{self.dtype}"


EVERY_ADDITION = tuple(Addition(dtype) for dtype in _NUMBERS)


def add_on_device(device: Device, to: DeviceArray, other: DeviceArray) -> None:
    """To += other, dense arrays of one shape, before the next kernel runs; returns at once."""
    count = to.nbytes // to.dtype.itemsize
    if not count:
        return
    blocks = min(-(-count // THREADS), MOST_BLOCKS)
    argument = np.array((to.ptr, other.ptr, count, blocks), ARGUMENT)
    device.launch(Addition(to.dtype), blocks, THREADS, argument)
