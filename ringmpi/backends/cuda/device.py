"""What the backend asks of a GPU: memory, copies, and kernels, all in the order in which they are asked for."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Kernel(Protocol):
    """A kernel to compile: instances.Instance, addition.Addition."""

    @property
    def name(self) -> str:
        """The C++ expression that names it."""
        ...

    @property
    def label(self) -> str:
        """The same, to read."""
        ...

    @property
    def source(self) -> str:
        """Its file in kernels/."""
        ...

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        ...


class Mark(Protocol):
    """A place in the order of work."""

    @property
    def done(self) -> bool:
        """Whether all before it has been done."""
        ...

    def wait(self) -> None:
        """Until it has."""
        ...


class Room(Protocol):
    """Bytes on a device; free when nobody holds them any more."""

    @property
    def ptr(self) -> int:
        """Their address."""
        ...


class Device(Protocol):
    """One GPU. There are two lines of work: kernels with their arrays, and copies of messages beside them.

    Attributes
    ----------
    name, uuid : str
    architecture : str
        "sm_90": compute capability 9.0.
    """

    name: str
    uuid: str
    architecture: str

    def allocate(self, nbytes: int) -> Room:
        """Bytes on the device, of any contents. BackendError where there are not so many."""
        ...

    def trim(self) -> None:
        """Free memory that is no longer held, for other libraries of this process and for other processes."""
        ...

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Bytes on the host that copies are quick with."""
        ...

    def launch(self, kernel: Kernel, grid: int, threads: int, argument: Any) -> None:
        """Let a kernel run on so many blocks of so many threads; returns at once.

        argument : NumPy array of size one, passed by value
        """
        ...

    def clear(self, to: int, nbytes: int) -> None:
        """Zeros, in the line of kernels; returns at once."""
        ...

    def upload(self, to: int, host: NDArray[Any], *, after: Mark | None = None) -> Mark:
        """Copy a contiguous array to an address; it must stay as it is until the mark is done.

        after : in the line of messages, behind this place in the line of kernels; None: in the line of kernels
        """
        ...

    def download(self, host: NDArray[Any], start: int, *, after: Mark | None = None) -> Mark:
        """Copy from an address into a contiguous array, as `upload`."""
        ...

    def mark(self) -> Mark:
        """Where the line of kernels ends now."""
        ...

    def wait(self) -> None:
        """Until all kernels, and what else is in their line, have ended."""
        ...

    def named(self, what: str) -> AbstractContextManager[None]:
        """What this thread asks for within it, by a name that profilers show."""
        ...
