"""One array on a GPU: where it lies, and how."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ringmpi.backends.cuda.device import Room


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """An array on a device, its elements in the order of its axes.

    Attributes
    ----------
    room : Room
        Where it begins; held, so that it stays there.
    row_bytes : int
        From the start of a row (the last axis) to the start of the next one.
    """

    room: Room
    shape: tuple[int, ...]
    dtype: np.dtype
    row_bytes: int

    @property
    def ptr(self) -> int:
        """Its address."""
        return int(self.room.ptr)

    @property
    def nbytes(self) -> int:
        """With what lies between rows."""
        return prod(self.shape[:-1]) * self.row_bytes

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis but the last."""
        steps = [self.row_bytes]
        for length in self.shape[-2:0:-1]:
            steps.insert(0, steps[0] * length)
        return tuple(steps)

    def squeeze(self, axis: int) -> DeviceArray:
        """Without the last axis (-1), which has one element."""
        assert axis == -1
        assert self.shape[-1] == 1
        return DeviceArray(self.room, self.shape[:-1], self.dtype, self.shape[-2] * self.row_bytes)
