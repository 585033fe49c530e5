"""One GPU by CuPy: memory, two streams, and kernels as compiler.py has compiled them. The only module that uses CuPy.

Nothing of CuPy is used that would have it compile anything: kernels are this package's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.cuda.compiler import Compiled
from ringmpi.backends.cuda.device import Kernel, Mark, Room
from ringmpi.backends.memory import pinned_bytes
from ringmpi.errors import BackendError

log = logging.getLogger("ringmpi")
MIB = 2.0**20
DEFAULT_SHARED_BYTES = 48 << 10  # a kernel that wants more has to ask for it
MOST_SHARED_BYTES = 97  # cudaDevAttrMaxSharedMemoryPerBlockOptin: what a block may have that asks for more
# Of cudaError: MemoryAllocation, DevicesUnavailable, NotReady. The first two have the same numbers in CUresult.
MEMORY_IS_OUT, UNAVAILABLE, NOT_READY = 2, 46, 600
Compile = Callable[[Kernel, str], tuple[Path, Compiled]]


class CupyDevice:
    """A GPU (device.py has the contract).

    It becomes the current one of this thread, and stays it: a CUDA-aware MPI library takes addresses of the current
    GPU, and a rank needs no context, hence no memory, on any other.

    Parameters
    ----------
    cupy : module
    index : int
        Among the GPUs that this process sees.
    compiled : function (kernel, architecture) -> (path, Compiled)
        The file with the machine code of a kernel.
    """

    def __init__(self, cupy: Any, index: int, compiled: Compile) -> None:
        self._cupy, self._runtime, self._compiled = cupy, cupy.cuda.runtime, compiled
        self._device = cupy.cuda.Device(index)
        self.make_current()
        with self._errors("start"):
            about = self._runtime.getDeviceProperties(index)
            self.name, self.uuid = about["name"].decode(), _uuid(about["uuid"], self._device.pci_bus_id)
            self.architecture = f"sm_{about['major']}{about['minor']}"
            self._shared_bytes = self._runtime.deviceGetAttribute(MOST_SHARED_BYTES, index)
            # Of its own: whatever allocator an application has chosen, MPI can send from this memory.
            self._pool = cupy.cuda.MemoryPool()
            self._line, self._beside = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        self._kernels: dict[str, Any] = {}
        nvtx = getattr(cupy.cuda, "nvtx", None)  # also there, but empty, where its library is not
        self._nvtx = nvtx if hasattr(nvtx, "RangePush") else None

    @property
    def about(self) -> str:
        """It, in words."""
        return f"{self.name} ({self.architecture}, {self.uuid})"

    def make_current(self) -> None:
        """Make it the current one of this thread; not in `with self._device`, whose end would undo that."""
        with self._told("start"):
            self._device.use()

    def allocate(self, nbytes: int) -> Room:
        """Bytes on the device, of any contents."""
        try:
            with self._errors("allocate memory"):
                return self._room(max(nbytes, 1))
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise self._full(f"one more array needs {nbytes / MIB:,.1f} MiB", error) from error

    def trim(self) -> None:
        """Free memory that is no longer held, for others; nothing where the device is broken."""
        with suppress(BackendError):
            self.wait()
            with self._errors("free memory"):
                self._pool.free_all_blocks()

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Bytes on the host that the device can copy from and to by itself."""
        with self._errors("pin host memory"):
            try:
                memory = self._cupy.cuda.alloc_pinned_memory(pinned_bytes(nbytes))
            except self._runtime.CUDARuntimeError as error:
                if error.status != MEMORY_IS_OUT:
                    raise
                raise BackendError(
                    f"the host cannot pin {nbytes / MIB:,.1f} MiB more for messages of GPU {self.about}: {error}. "
                    f"Raise the limit of locked memory (ulimit -l unlimited) and the memory of the job (Slurm: --mem), "
                    f"or use more ranks; with a CUDA-aware MPI library nothing is pinned."
                ) from error
        return np.frombuffer(memory, np.uint8, nbytes)

    def launch(self, kernel: Kernel, grid: int, threads: int, argument: Any) -> None:
        """Let a kernel run behind what is in the line of kernels."""
        with self._errors(f"run {kernel.label}"), self.named(kernel.label), self._line:
            self._loaded(kernel)((grid,), (threads,), (argument,), shared_mem=kernel.shared_bytes)

    def clear(self, to: int, nbytes: int) -> None:
        """Zeros, in the line of kernels."""
        with self._errors("clear memory"):
            self._runtime.memsetAsync(to, 0, nbytes, self._line.ptr)

    def upload(self, to: int, host: NDArray[Any], *, after: Mark | None = None) -> Mark:
        """Copy a contiguous array to the device."""
        return self._copy(to, host.ctypes.data, host.nbytes, self._runtime.memcpyHostToDevice, after)

    def download(self, host: NDArray[Any], start: int, *, after: Mark | None = None) -> Mark:
        """Copy bytes of the device into a contiguous array."""
        return self._copy(host.ctypes.data, start, host.nbytes, self._runtime.memcpyDeviceToHost, after)

    def mark(self) -> Mark:
        """Where the line of kernels ends now."""
        return self._marked(self._line)

    def wait(self) -> None:
        """Until all kernels, and what else is in their line, have ended."""
        with self._errors("finish its kernels"):
            self._line.synchronize()

    def named(self, what: str) -> AbstractContextManager[None]:
        """A range of NVTX, which Nsight shows; nothing where CuPy has not found its library."""
        return nullcontext() if self._nvtx is None else _pushed(self._nvtx, what)

    def _room(self, nbytes: int) -> Room:
        """From the pool. Where the device is full, also of what CuPy's own pool keeps and nobody uses."""
        room: Room
        try:
            room = self._pool.malloc(nbytes)
        except self._cupy.cuda.memory.OutOfMemoryError:
            self._cupy.get_default_memory_pool().free_all_blocks()
            room = self._pool.malloc(nbytes)
        return room

    def _copy(self, to: int, start: int, nbytes: int, kind: int, after: Mark | None) -> Mark:
        stream = self._line if after is None else self._beside
        with self._errors("copy"):
            if isinstance(after, _Mark):
                stream.wait_event(after.event)
            if nbytes:
                self._runtime.memcpyAsync(to, start, nbytes, kind, stream.ptr)
        return self._marked(stream)

    def _marked(self, stream: Any) -> Mark:
        with self._errors("record an event"):
            return _Mark(self, stream.record(self._cupy.cuda.Event(disable_timing=True)))

    def _loaded(self, kernel: Kernel) -> Any:
        """The kernel, ready to launch."""
        if kernel.name not in self._kernels:
            if kernel.shared_bytes > self._shared_bytes:
                raise BackendError(
                    f"{kernel.label} needs {kernel.shared_bytes:,} bytes of shared memory per block, and GPU "
                    f"{self.about} has {self._shared_bytes:,}. Use a narrower dtype or a smaller head_dim, or use "
                    f'backend "native".'
                )
            path, compiled = self._compiled(kernel, self.architecture)
            function = self._cupy.RawModule(path=str(path)).get_function(compiled.symbol)
            if kernel.shared_bytes > DEFAULT_SHARED_BYTES:
                function.max_dynamic_shared_size_bytes = kernel.shared_bytes
            self._kernels[kernel.name] = function
        return self._kernels[kernel.name]

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """The same with this GPU as the current one: an application may have made another one that."""
        with self._told(doing), self._device:
            yield

    @contextmanager
    def _told(self, doing: str) -> Iterator[None]:
        """What the driver complains of, with the GPU and what it was to do."""
        try:
            yield
        except self._failures as error:
            raise self._failed(doing, error) from error

    @property
    def _failures(self) -> tuple[type[Exception], ...]:
        """What CuPy raises where CUDA refuses; each has the `status` that CUDA gave."""
        return self._runtime.CUDARuntimeError, self._cupy.cuda.driver.CUDADriverError

    @property
    def _who(self) -> str:
        """The GPU in words, even before it has started."""
        return f"GPU {self.about if hasattr(self, 'architecture') else self._device.id}"

    def _failed(self, doing: str, error: Any) -> BackendError:
        """What to do about an error of CUDA."""
        if error.status == MEMORY_IS_OUT:
            return self._full(f"that is not enough to {doing}", error)
        if error.status == UNAVAILABLE:
            return BackendError(
                f"GPU {self._device.id} is held by another process, or its compute mode allows only one process: start "
                f"one rank per GPU, and end other programs on it (nvidia-smi shows both). CUDA says: {error}"
            )
        return BackendError(
            f"{self._who} cannot {doing}: {error}. After a kernel error every later CUDA call in this process "
            f"fails; please report it with the output of ringmpi info."
        )

    def _full(self, wanting: str, error: Exception) -> BackendError:
        """What to do when memory is exhausted."""
        try:
            free, total = (f"{nbytes / MIB:,.1f}" for nbytes in self._device.mem_info)
        except self._failures:  # it has no room even for a context of this process
            free = total = "?"
        return BackendError(
            f"{self._who} has {free} of {total} MiB free, and {wanting} ({error}). Use more ranks, each with its "
            f"own GPU, or a narrower dtype; ringmpi plan says what a rank needs."
        )


class _Mark:
    """An event; errors of what comes before it show here."""

    def __init__(self, device: CupyDevice, event: Any) -> None:
        self._device, self.event = device, event

    @property
    def done(self) -> bool:
        """Whether the device has come past it.

        CuPy's `Event.done` is False for ever after an error of a kernel: the status is looked at here.
        """
        runtime = self._device._runtime
        with self._device._errors("wait for its kernels"):
            status = runtime.eventQuery(self.event.ptr)
            if status not in (0, NOT_READY):
                raise runtime.CUDARuntimeError(status)
        return bool(status == 0)

    def wait(self) -> None:
        """Until it is done."""
        with self._device._errors("wait for its kernels"):
            self.event.synchronize()


@contextmanager
def _pushed(nvtx: Any, name: str) -> Iterator[None]:
    """Ranges of a thread lie within each other, so this one ends however its body does."""
    nvtx.RangePush(name)
    try:
        yield
    finally:
        nvtx.RangePop()


def _uuid(raw: bytes, place: str) -> str:
    """As nvidia-smi writes it. CuPy gives it as a C string, which a byte of 0 ends: then its place stands for it."""
    if len(raw) < 16:
        return f"GPU at {place}"
    digits = raw[:16].hex()
    return "GPU-" + "-".join(digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
