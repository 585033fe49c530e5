"""Where the arrays of a pass lie: in the memory of the host, or in that of a device. A backend names its memory.

The ring moves whole arrays and never looks into them; what has to be looked at is brought to the host by `get`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Shape = Sequence[int]
HostArray = NDArray[Any]


class Layout(Protocol):
    """How much room arrays take."""

    def nbytes(self, shape: Shape, dtype: np.dtype, *, aligned: bool = False) -> int:
        """What an array takes. `aligned`: its rows start where kernels can fetch them quickly."""
        ...


class Memory(Layout, Protocol):
    """Arrays of one kind of memory: `shape`, `dtype` and `nbytes` they all have.

    Attributes
    ----------
    on_host : bool
        Its arrays are NumPy arrays; `put`, `get` and `write` copy nothing.
    layout : str
        How arrays lie in it. Ranks of different layouts cannot send each other arrays.
    device : Device or None
        The GPU that it belongs to; None: the host.
    ferry : Ferry or None
        What brings arrays to the host and back for messages (comm/device_ring.py); None: they are on the host.
    """

    on_host: bool
    layout: str
    device: Any
    ferry: Any

    def empty(self, shape: Shape, dtype: np.dtype, *, aligned: bool = False) -> Any:
        """An array there, of any contents."""
        ...

    def shaped(self, room: Any, shape: Shape) -> Any:
        """The beginning of an array, seen as a smaller one of another shape."""
        ...

    def put(self, host: HostArray, *, aligned: bool = False) -> Any:
        """The array, there."""
        ...

    def get(self, there: Any) -> HostArray:
        """The array, on the host; a NumPy array as it is."""
        ...

    def write(self, there: Any, host: HostArray) -> None:
        """Fill an array that is there, or on the host."""
        ...

    def clear(self, there: Any) -> None:
        """Fill it with zeros."""
        ...

    def add(self, there: Any, other: Any) -> None:
        """Add to an array that is there another one that is."""
        ...

    def named(self, what: str) -> AbstractContextManager[None]:
        """What is done within it, for profilers of the device."""
        ...


class HostMemory:
    """The memory of this process: everything stays where it is."""

    on_host = True
    layout = "host"
    device = None
    ferry = None

    def nbytes(self, shape: Shape, dtype: np.dtype, *, aligned: bool = False) -> int:
        """Rows are dense; loads of CPUs do not mind."""
        return prod(shape) * dtype.itemsize

    def empty(self, shape: Shape, dtype: np.dtype, *, aligned: bool = False) -> Any:
        """A NumPy array."""
        return np.empty(shape, dtype)

    def shaped(self, room: Any, shape: Shape) -> Any:
        """A view, contiguous."""
        return room.reshape(-1)[: prod(shape)].reshape(shape)

    def put(self, host: HostArray, *, aligned: bool = False) -> Any:
        """The array itself."""
        return host

    def get(self, there: Any) -> HostArray:
        """The array itself."""
        found: HostArray = there
        return found

    def write(self, there: Any, host: HostArray) -> None:
        """A copy, where it is not the same memory anyway."""
        if there.ctypes.data != host.ctypes.data:
            there[...] = host

    def clear(self, there: Any) -> None:
        """Zeros."""
        there[...] = 0

    def add(self, there: Any, other: Any) -> None:
        """Element by element."""
        there += other

    def named(self, what: str) -> AbstractContextManager[None]:
        """Nothing: there is no device to look at."""
        return nullcontext()


def pinned_bytes(nbytes: int) -> int:
    """What a message of this many bytes that goes through the host pins there: a power of two.

    So sizes are few: CuPy keeps pinned memory for ever, and gives it again to who asks for the same size only.
    """
    return 1 << max(nbytes - 1, 0).bit_length()


HOST = HostMemory()
CHUNK_BYTES = 16  # on a device, rows that kernels fetch start at multiples of this


class DeviceLayout:
    """Of arrays on devices."""

    def row_bytes(self, shape: Shape, dtype: np.dtype, *, aligned: bool) -> int:
        """From the start of a row (the last axis) to the start of the next one."""
        dense = shape[-1] * dtype.itemsize
        return -(-dense // CHUNK_BYTES) * CHUNK_BYTES if aligned else dense

    def nbytes(self, shape: Shape, dtype: np.dtype, *, aligned: bool = False) -> int:
        """What an array takes, padding between rows included."""
        return prod(shape[:-1]) * self.row_bytes(shape, dtype, aligned=aligned)
