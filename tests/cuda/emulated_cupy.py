"""As much of CuPy as the backend uses, for a device that is not there. It does what it is asked for as late as it may.

Work waits in its stream until somebody polls an event or synchronises; memory holds NaN before it is written; the null
stream, and shared memory that was not asked for, are refused. So what a host forgets to wait for shows.
"""

from __future__ import annotations

import bisect
import ctypes
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from ringmpi.backends.cuda.compiler import Compiled
from ringmpi.backends.cuda.cupy_device import DEFAULT_SHARED_BYTES

POISON = 0xFF  # NaN in every dtype
GIB = 1 << 30


class CUDARuntimeError(RuntimeError):
    pass


class CUDADriverError(RuntimeError):
    pass


def fail() -> None:
    raise CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")


class OutOfMemoryError(MemoryError):
    pass


class Room:
    """Bytes on the device: an address, and nothing that NumPy could read."""

    def __init__(self, nbytes: int, pool: MemoryPool) -> None:
        self._own = np.full(nbytes + 256, POISON, np.uint8)
        self.ptr = self._own.ctypes.data + -self._own.ctypes.data % 256
        self._pool, self._bounds = pool, (self.ptr, self.ptr + nbytes)
        pool.take(self._bounds)

    def __del__(self) -> None:
        if hasattr(self, "_bounds"):
            self._pool.free(self._bounds)


class MemoryPool:
    def __init__(self, emulated: EmulatedCupy) -> None:
        self._emulated = emulated

    def malloc(self, nbytes: int) -> Room:
        if self._emulated.used + nbytes > self._emulated.nbytes:
            raise OutOfMemoryError(f"Out of memory allocating {nbytes} bytes")
        return Room(nbytes, self)

    def take(self, bounds: tuple[int, int]) -> None:
        bisect.insort(self._emulated.bounds, bounds)
        self._emulated.allocations += 1
        self._emulated.used += bounds[1] - bounds[0]
        self._emulated.peak = max(self._emulated.peak, self._emulated.used)

    def free(self, bounds: tuple[int, int]) -> None:
        self._emulated.bounds.remove(bounds)
        self._emulated.used -= bounds[1] - bounds[0]
        pending = (touched for stream in self._emulated.streams for _, touched in stream.waiting)
        self._emulated.freed_early += any(
            bounds[0] <= address < bounds[1] for addresses in pending for address in addresses
        )


class Device:
    pci_bus_id = "0000:00:00.0"

    def __init__(self, emulated: EmulatedCupy, capability: str) -> None:
        self._emulated, self.compute_capability = emulated, capability

    @property
    def mem_info(self) -> tuple[int, int]:
        return self._emulated.nbytes - self._emulated.used, self._emulated.nbytes

    def __enter__(self) -> Device:
        self._emulated.entered += 1
        return self

    def __exit__(self, *about: object) -> None:
        self._emulated.entered -= 1


class Event:
    def __init__(self, *, disable_timing: bool = True) -> None:
        self.stream: Stream | None = None
        self.passed = False

    @property
    def done(self) -> bool:
        """Each look lets the device do one thing more, if it likes to."""
        if not self.passed and self.stream.emulated.willing():
            self.stream.do_one()
        return self.passed

    def synchronize(self) -> None:
        while not self.done:
            pass


class Stream:
    def __init__(self, emulated: EmulatedCupy) -> None:
        self.emulated, self.waiting = emulated, deque[tuple[Callable[[], Any], list[int]]]()
        emulated.streams.append(self)
        self.ptr = len(emulated.streams)

    def __enter__(self) -> Stream:
        self.emulated.current.append(self)
        return self

    def __exit__(self, *about: object) -> None:
        self.emulated.current.pop()

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.stream = self
        self.ask(lambda: setattr(event, "passed", True))
        return event

    def ask(self, work: Callable[[], Any], *touched: int) -> None:
        """Work, with the addresses that it has."""
        self.waiting.append((work, list(touched)))

    def wait_event(self, event: Event) -> None:
        self.ask(event.synchronize)

    def synchronize(self) -> None:
        while self.waiting:
            self.do_one()

    def do_one(self) -> None:
        self.waiting.popleft()[0]()


class Function:
    """A kernel, as RawModule gives it."""

    max_dynamic_shared_size_bytes = DEFAULT_SHARED_BYTES

    def __init__(self, emulated: EmulatedCupy, kernel: Any) -> None:
        self._emulated, self._kernel = emulated, kernel

    def __call__(self, grid: tuple[int], block: tuple[int], arguments: tuple[Any], *, shared_mem: int) -> None:
        (argument,) = arguments
        assert self._emulated.entered, "the device is to be the current one"
        assert argument.size == 1, "only an array of size one is passed by value"
        assert shared_mem <= self.max_dynamic_shared_size_bytes, "shared memory above 48 KB is to be asked for"
        assert self._emulated.current, "kernels do not belong into the null stream"
        emulated, argument = self._emulated, argument.copy()
        words = np.frombuffer(argument.tobytes().ljust(-(-argument.nbytes // 8) * 8, bytes(1)), np.uint64)
        emulated.current[-1].ask(
            lambda: emulated.runner(self._kernel, (grid[0], block[0]), argument, np.array(emulated.bounds, np.uint64)),
            *words.tolist(),
        )


class EmulatedCupy:
    """The module.

    runner : function (kernel, (blocks, threads), argument, bounds of all memory [n, 2]) that runs a kernel
    nbytes : memory of the device
    count, capability : how many devices there are, and of which compute capability
    """

    def __init__(self, runner: Any, *, nbytes: int = 4 * GIB, count: int = 1, capability: str = "80") -> None:
        self.runner, self.nbytes = runner, nbytes
        self.streams: list[Stream] = []
        self.current: list[Stream] = []
        self.bounds: list[tuple[int, int]] = []
        self.used = self.peak = self.allocations = self.pinned = self.freed_early = 0
        self.entered = 0
        self.willing: Callable[[], bool] = lambda: True
        self._kernels: dict[str, Any] = {}
        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(
                CUDARuntimeError=CUDARuntimeError,
                memcpyHostToDevice=1,
                memcpyDeviceToHost=2,
                getDeviceCount=lambda: count,
                getDeviceProperties=lambda index: {"name": b"emulated", "uuid": bytes(15) + bytes([index])},
                memcpyAsync=self._copy,
                memsetAsync=self._set,
            ),
            driver=SimpleNamespace(CUDADriverError=CUDADriverError),
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            Device=lambda index: Device(self, capability),
            MemoryPool=lambda: MemoryPool(self),
            Stream=lambda *, non_blocking: Stream(self),
            Event=Event,
            alloc_pinned_memory=self._pin,
        )

    def RawModule(self, *, path: str) -> Any:  # noqa: N802 - the name that CuPy has
        return SimpleNamespace(get_function=lambda symbol: Function(self, self._kernels[symbol]))

    def compiled(self, kernel: Any, architecture: str) -> tuple[str, Compiled]:
        """In place of the compiler: the runner knows what to do."""
        self._kernels[kernel.name] = kernel
        return kernel.label, Compiled(kernel.name, 0, 0, 0)

    def _pin(self, nbytes: int) -> bytearray:
        self.pinned += nbytes
        return bytearray([POISON]) * nbytes

    def _copy(self, to: int, start: int, nbytes: int, kind: int, stream: int) -> None:
        there = start if kind == 2 else to
        assert self._holds(there, nbytes), "a copy leaves the memory that was asked for"
        self.streams[stream - 1].ask(lambda: ctypes.memmove(to, start, nbytes), there)

    def _set(self, to: int, value: int, nbytes: int, stream: int) -> None:
        assert self._holds(to, nbytes), "memory is cleared that was not asked for"
        self.streams[stream - 1].ask(lambda: ctypes.memset(to, value, nbytes), to)

    def _holds(self, start: int, nbytes: int) -> bool:
        return any(first <= start and start + nbytes <= last for first, last in self.bounds)
