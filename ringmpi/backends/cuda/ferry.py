"""What brings arrays of a GPU to the host and back while they travel (comm/device_ring.py has the contract)."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.cuda.device import Device, Mark
from ringmpi.backends.cuda.device_array import DeviceArray

Bytes = NDArray[np.uint8]


class DeviceFerry:
    """Copies between a device and memory of the host, which is asked for once and used again."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free: dict[int, list[Bytes]] = defaultdict(list)

    def complete(self) -> None:
        """Wait until the device has done all that it was asked for."""
        self._device.wait()

    def as_bytes(self, array: DeviceArray) -> DeviceBytes:
        """The bytes of an array, where they lie."""
        return DeviceBytes(array, array.ptr, array.nbytes)

    def room(self, nbytes: int) -> Bytes:
        """Pinned bytes on the host: used before, or new."""
        return self._free[nbytes].pop() if self._free[nbytes] else self._device.pinned(nbytes)

    def give_back(self, room: Bytes) -> None:
        """For the next message of this length."""
        self._free[room.nbytes].append(room)

    def mark(self) -> Mark:
        """Where that ends which the device has been asked for."""
        return self._device.mark()

    def down(self, array: DeviceArray, room: Bytes, after: Mark) -> Mark:
        """To the host, behind a mark; beside the kernels after it."""
        return self._device.download(room, array.ptr, after=after)

    def up(self, room: Bytes, array: DeviceArray, after: Mark) -> Mark:
        """To the device, behind a mark; beside the kernels after it."""
        return self._device.upload(array.ptr, room, after=after)


class DeviceBytes:
    """Bytes on a device, as libraries that know CUDA take them; parts are slices. Holds what they belong to."""

    def __init__(self, owner: Any, start: int, nbytes: int) -> None:
        self._owner, self._start, self.nbytes = owner, start, nbytes

    def __len__(self) -> int:
        """Bytes."""
        return self.nbytes

    def __getitem__(self, part: slice) -> DeviceBytes:
        """Some of them, one after the other."""
        start, stop, step = part.indices(self.nbytes)
        assert step == 1
        return DeviceBytes(self._owner, self._start + start, max(stop - start, 0))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3; no stream: all that writes them has ended."""
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self._start, False),
            "version": 3,
            "strides": None,
            "stream": None,
        }
