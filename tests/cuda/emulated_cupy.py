"""As much of CuPy as the backend uses, for a device that is not there. It does what it is asked for as late as it may.

Work waits in its stream until somebody polls an event or synchronises; memory holds NaN before it is written; the null
stream, and shared memory that was not asked for, are refused. So what a host forgets to wait for shows. After an error
of a kernel (`status`) every call fails, but for `eventQuery`, which returns it. Memory that was freed stays in the pool
that it came from, and is free for nobody else.
"""

from __future__ import annotations

import bisect
import ctypes
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from ringmpi.backends.cuda.compiler import Compiled
from ringmpi.backends.cuda.cupy_device import DEFAULT_SHARED_BYTES

POISON = 0xFF  # NaN in every dtype
GIB = 1 << 30


MEMORY_ALLOCATION, INSUFFICIENT_DRIVER, DEVICES_UNAVAILABLE, NOT_READY, ILLEGAL_ADDRESS = 2, 35, 46, 600, 700
ERRORS = {
    MEMORY_ALLOCATION: "cudaErrorMemoryAllocation: out of memory",
    INSUFFICIENT_DRIVER: "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version",
    DEVICES_UNAVAILABLE: "cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy or unavailable",
    ILLEGAL_ADDRESS: "cudaErrorIllegalAddress: an illegal memory access was encountered",
}


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(ERRORS[status])


class CUDADriverError(RuntimeError):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"CUDA_ERROR {status}")


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
    """Blocks that were freed are for who asks it for as many bytes. It lets go of them when it gets no other memory."""

    def __init__(self, emulated: EmulatedCupy) -> None:
        self._emulated = emulated
        self.blocks = Counter[int]()  # free ones, by their bytes
        emulated.pools.append(self)

    def malloc(self, nbytes: int) -> Room:
        if self.blocks[nbytes]:
            self.blocks[nbytes] -= 1
        elif nbytes > self._emulated.free:
            self.free_all_blocks()
            if nbytes > self._emulated.free:
                raise OutOfMemoryError(f"Out of memory allocating {nbytes} bytes")
        return Room(nbytes, self)

    def free_all_blocks(self) -> None:
        assert self._emulated.entered, "the device is to be the current one: a pool has blocks of each"
        self.blocks.clear()

    def take(self, bounds: tuple[int, int]) -> None:
        bisect.insort(self._emulated.bounds, bounds)
        self._emulated.allocations += 1
        self._emulated.used += bounds[1] - bounds[0]
        self._emulated.peak = max(self._emulated.peak, self._emulated.used)

    def free(self, bounds: tuple[int, int]) -> None:
        self._emulated.bounds.remove(bounds)
        self._emulated.used -= bounds[1] - bounds[0]
        self.blocks[bounds[1] - bounds[0]] += 1
        pending = (touched for stream in self._emulated.streams for _, touched in stream.waiting)
        self._emulated.freed_early += any(
            bounds[0] <= address < bounds[1] for addresses in pending for address in addresses
        )


class Device:
    pci_bus_id = "0000:00:00.0"

    def __init__(self, emulated: EmulatedCupy, index: int) -> None:
        self._emulated, self.id = emulated, index
        self._before: list[int] = []

    @property
    def mem_info(self) -> tuple[int, int]:
        self._emulated.check_start(self.id)
        return self._emulated.free, self._emulated.nbytes

    def use(self) -> None:
        self._emulated.check_start(self.id)
        self._emulated.make_current(self.id)

    def __enter__(self) -> Device:
        self._before.append(self._emulated.current_device)
        if self.id != self._before[-1]:
            self.use()
        self._emulated.entered += 1
        return self

    def __exit__(self, *about: object) -> None:
        self._emulated.entered -= 1
        self._emulated.make_current(self._before.pop())


class Event:
    def __init__(self, emulated: EmulatedCupy) -> None:
        self._emulated, self.stream, self.passed, self.ptr = emulated, None, False, id(self)
        emulated.events[self.ptr] = self

    @property
    def done(self) -> bool:
        """As CuPy has it: False after an error."""
        return self._emulated.query(self.ptr) == 0

    def look(self) -> None:
        """Each look lets the device do one thing more, if it likes to."""
        if not self.passed and self._emulated.willing():
            self.stream.do_one()

    def come(self) -> None:
        """Let the device do what lies before it, until it fails."""
        while not self.passed and not self._emulated.status:
            self.look()

    def synchronize(self) -> None:
        self.come()
        self._emulated.check()


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
        event = event or Event(self.emulated)
        event.stream = self
        self.ask(lambda: setattr(event, "passed", True))
        return event

    def ask(self, work: Callable[[], Any], *touched: int) -> None:
        """Work, with the addresses that it has."""
        self.waiting.append((work, list(touched)))

    def wait_event(self, event: Event) -> None:
        self.ask(event.come)

    def synchronize(self) -> None:
        while self.waiting:
            self.do_one()
        self.emulated.check()

    def do_one(self) -> None:
        work = self.waiting.popleft()[0]
        if not self.emulated.status:
            work()


class Function:
    """A kernel, as RawModule gives it."""

    max_dynamic_shared_size_bytes = DEFAULT_SHARED_BYTES

    def __init__(self, emulated: EmulatedCupy, kernel: Any) -> None:
        self._emulated, self._kernel = emulated, kernel

    def __call__(self, grid: tuple[int], block: tuple[int], arguments: tuple[Any], *, shared_mem: int) -> None:
        self._emulated.check()
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
    capabilities : compute capability of each device, "80"
    shared_bytes : what a block may have that asks for more
    modes : compute modes, by device; 0 is the default

    Attributes
    ----------
    status : what a kernel has failed by, for good; 0 is well
    current_device, contexts : which device is the current one, and all that have been
    refused : what devices do not start by, by their index
    """

    def __init__(
        self,
        runner: Any,
        *,
        nbytes: int = 4 * GIB,
        capabilities: Sequence[str] = ("80",),
        shared_bytes: int = 163 << 10,
        modes: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.runner, self.nbytes = runner, nbytes
        self.capabilities, self.shared_bytes, self.modes = capabilities, shared_bytes, modes
        self.status = self.current_device = 0
        self.contexts: set[int] = set()
        self.refused: dict[int, int] = {}
        self.pools: list[MemoryPool] = []
        self.default_pool = MemoryPool(self)
        self.events: weakref.WeakValueDictionary[int, Event] = weakref.WeakValueDictionary()
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
                getDeviceCount=lambda: len(capabilities),
                getDeviceProperties=self._about,
                deviceGetAttribute=self._attribute,
                eventQuery=self.query,
                memcpyAsync=self._copy,
                memsetAsync=self._set,
            ),
            driver=SimpleNamespace(CUDADriverError=CUDADriverError),
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            Device=lambda index: Device(self, index),
            MemoryPool=lambda: MemoryPool(self),
            Stream=lambda *, non_blocking: Stream(self),
            Event=lambda *, disable_timing: Event(self),
            nvtx=SimpleNamespace(available=False),  # as CuPy has it where the library is not
            alloc_pinned_memory=self._pin,
        )

    def get_default_memory_pool(self) -> MemoryPool:
        return self.default_pool

    def RawModule(self, *, path: str) -> Any:  # noqa: N802 - the name that CuPy has
        return SimpleNamespace(get_function=lambda symbol: Function(self, self._kernels[symbol]))

    def compiled(self, kernel: Any, architecture: str) -> tuple[str, Compiled]:
        """In place of the compiler: the runner knows what to do."""
        self._kernels[kernel.name] = kernel
        return kernel.label, Compiled(kernel.name, 0, 0, 0)

    @property
    def kept(self) -> int:
        """Bytes that nobody uses, and pools keep."""
        return sum(nbytes * count for pool in self.pools for nbytes, count in pool.blocks.items())

    @property
    def free(self) -> int:
        """As the driver says."""
        return self.nbytes - self.used - self.kept

    def check_start(self, index: int) -> None:
        """Whether a process may use a device at all."""
        if index in self.refused:
            raise CUDARuntimeError(self.refused[index])

    def make_current(self, index: int) -> None:
        """A device that is made the current one has a context from then on."""
        self.current_device = index
        self.contexts.add(index)

    def query(self, event: int) -> int:
        """The status, which nobody looks at here."""
        self.events[event].look()
        return self.status or (0 if self.events[event].passed else NOT_READY)

    def check(self) -> None:
        """What every other call does with it."""
        if self.status:
            raise CUDARuntimeError(self.status)

    def _about(self, index: int) -> dict[str, Any]:
        major, minor = divmod(int(self.capabilities[index]), 10)
        return {"name": b"emulated", "uuid": bytes(15) + bytes([index]), "major": major, "minor": minor}

    def _attribute(self, which: int, index: int) -> int:
        major, minor = divmod(int(self.capabilities[index]), 10)
        return {20: self.modes.get(index, 0), 75: major, 76: minor, 97: self.shared_bytes}[which]

    def _pin(self, nbytes: int) -> bytearray:
        self.check()
        self.pinned += nbytes
        return bytearray([POISON]) * nbytes

    def _copy(self, to: int, start: int, nbytes: int, kind: int, stream: int) -> None:
        self.check()
        there = start if kind == 2 else to
        assert self._holds(there, nbytes), "a copy leaves the memory that was asked for"
        self.streams[stream - 1].ask(lambda: ctypes.memmove(to, start, nbytes), there)

    def _set(self, to: int, value: int, nbytes: int, stream: int) -> None:
        assert self._holds(to, nbytes), "memory is cleared that was not asked for"
        self.streams[stream - 1].ask(lambda: ctypes.memset(to, value, nbytes), to)

    def _holds(self, start: int, nbytes: int) -> bool:
        return any(first <= start and start + nbytes <= last for first, last in self.bounds)
