"""Arrays on a GPU, as raw bytes: whatever the dtype, nothing but the kernels looks into them."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.cuda.addition import add_on_device
from ringmpi.backends.cuda.device import Device, Room
from ringmpi.backends.cuda.device_array import DeviceArray
from ringmpi.backends.cuda.ferry import DeviceFerry
from ringmpi.backends.memory import CHUNK_BYTES, DeviceLayout, Shape
from ringmpi.core.dtypes import native


class DeviceMemory(DeviceLayout):
    """The memory of one GPU (backends/memory.py has the contract).

    Where it and its arrays have gone, the device gives away what they have had: others may need it.
    """

    on_host = False
    layout = f"device, rows of {CHUNK_BYTES} bytes"

    def __init__(self, device: Device) -> None:
        self.device = device
        self.ferry = DeviceFerry(device)
        self._loan = _Loan(device)
        self._in_use: list[DeviceArray] = []  # by work that was asked for and may not be over

    def empty(self, shape: Shape, dtype: np.dtype, *, aligned: bool = False) -> DeviceArray:
        """An array of any contents."""
        room = self.device.allocate(self.nbytes(shape, dtype, aligned=aligned))
        return DeviceArray(
            _Lent(room, self._loan), tuple(shape), native(dtype), self.row_bytes(shape, dtype, aligned=aligned)
        )

    def shaped(self, room: DeviceArray, shape: Shape) -> DeviceArray:
        """The beginning of it; rows are as long as they were."""
        return DeviceArray(room.room, tuple(shape), room.dtype, room.row_bytes)

    def put(self, host: NDArray[Any], *, aligned: bool = False) -> DeviceArray:
        """A copy there; over when this returns."""
        there = self.empty(host.shape, host.dtype, aligned=aligned)
        self.write(there, host)
        return there

    def get(self, there: Any) -> NDArray[Any]:
        """A copy of what is there when all kernels have ended."""
        if isinstance(there, np.ndarray):
            return there
        item = there.dtype.itemsize
        bits = np.empty((*there.shape[:-1], there.row_bytes // item), f"u{item}")
        self.device.download(bits, there.ptr).wait()
        self._in_use.clear()
        return np.ascontiguousarray(bits[..., : there.shape[-1]]).view(there.dtype)

    def write(self, there: Any, host: NDArray[Any]) -> None:
        """A copy, over when this returns."""
        if isinstance(there, np.ndarray):
            there[...] = host
            return
        item = there.dtype.itemsize
        bits = np.ascontiguousarray(host.astype(there.dtype, copy=False)).view(f"u{item}")
        missing = there.row_bytes // item - bits.shape[-1]
        if missing:
            bits = np.pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, missing)])
        self.device.upload(there.ptr, bits).wait()
        self._in_use.clear()

    def clear(self, there: DeviceArray) -> None:
        """Zeros, before the next kernel runs."""
        self.device.clear(there.ptr, there.nbytes)
        self._in_use.append(there)

    def add(self, there: DeviceArray, other: DeviceArray) -> None:
        """Before the next kernel runs."""
        add_on_device(self.device, there, other)
        self._in_use += there, other

    def named(self, what: str) -> AbstractContextManager[None]:
        """A range of NVTX."""
        return self.device.named(what)


class _Loan:
    """What a memory and all its arrays hold on to; it ends with the last of them."""

    def __init__(self, device: Device) -> None:
        weakref.finalize(self, device.trim).atexit = False  # a process that ends gives all back anyway


@dataclass(frozen=True, eq=False)
class _Lent:
    """Bytes on a device. Python lets go of the fields in their order: the room is free when the loan ends."""

    room: Room
    loan: _Loan

    @property
    def ptr(self) -> int:
        """Their address."""
        return self.room.ptr
