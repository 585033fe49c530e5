"""The emulated device: kernels built by g++ on fibers (emulator/), behind as much of CuPy as the backend needs."""

from __future__ import annotations

import bisect
import ctypes
import fcntl
import hashlib
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ringmpi.backends.cuda.attend import CudaBackend
from ringmpi.backends.cuda.instances import Instance

EMULATOR = Path(__file__).parent / "emulator"
KERNELS = Path(__file__).parents[2] / "ringmpi/backends/cuda/kernels"
FLAGS = (
    "-std=c++20",
    "-O2",
    "-g1",
    "-march=native",
    "-ffp-contract=off",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
)
WATCH = ("-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0", "-Wno-tsan")
BUILD_SECONDS = 300
EMULATED = bool(os.environ.get("EMULATED"))  # the tests of all backends are then of this one; "watched": looked at


class EmulatorError(RuntimeError):
    """What ended a launch: block, thread, where in the kernel, and why."""


def build_folder() -> Path:
    """Where builds are kept: $EMULATOR_BUILD, or a folder for temporary files."""
    folder = Path(os.environ.get("EMULATOR_BUILD", Path(tempfile.gettempdir()) / f"ringmpi-emulator-{os.getuid()}"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@cache
def _digest(*files: Path) -> str:
    """Of sources and flags: a change of any builds anew."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in files) + repr((FLAGS, WATCH)).encode()).hexdigest()[
        :16
    ]


def _compile(target: Path, sources: list[str | Path], kernels: Path, *flags: str) -> Path:
    """Compile once, whoever asks first; others wait. A target appears whole or not at all."""
    with Path(f"{target}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            part = f"{target}.part"
            command = ["g++", *FLAGS, *flags, f"-I{EMULATOR}", f"-I{kernels}", "-o", part, *map(str, sources)]
            result = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
            if result.returncode:
                raise RuntimeError(f"{' '.join(command)}\n{result.stderr[:4000]}")
            Path(part).rename(target)
    return target


def build(instance: Instance, *, watch: bool, kernels: Path = KERNELS) -> Path:
    """The shared library with one kernel.

    watch: its loads and stores are looked at. kernels: the folder of its sources.
    """
    name = instance.name
    folder, own_files = build_folder(), sorted(EMULATOR.glob("*"))
    digest = _digest(*own_files, kernels / "primitives.cuh")
    sources = sorted(EMULATOR.glob("*.cpp"))
    runtime = [_compile(folder / f"{digest}-{source.stem}.o", [source], kernels, "-c") for source in sources]
    digest = _digest(*own_files, *sorted(kernels.glob("*.cuh")))
    own = folder / f"{digest}-{hashlib.sha256(name.encode()).hexdigest()[:12]}{'-watched' * watch}"
    Path(f"{own}.cpp").write_text(f'#include "{instance.source}"\nEMULATE("{name}", {name});\n')
    kernel = _compile(Path(f"{own}.o"), [f"{own}.cpp"], kernels, "-c", *(WATCH if watch else ()))
    return _compile(Path(f"{own}.so"), [*runtime, kernel], kernels, "-shared", "-ldl")


class EmulatedArray:
    """An array on the device; `data.ptr` and `get` as CuPy has them."""

    def __init__(self, host: np.ndarray, memory: list[tuple[int, int]]) -> None:
        room = np.empty(host.nbytes + 256, np.uint8)
        at = -room.ctypes.data % 256
        self._own = np.ndarray(host.shape, host.dtype, room.data, at)
        self._own[...] = host
        self._memory, self._bounds = memory, (self._own.ctypes.data, self._own.ctypes.data + host.nbytes)
        bisect.insort(memory, self._bounds)
        self.data, self.strides = SimpleNamespace(ptr=self._own.ctypes.data), self._own.strides

    def get(self) -> np.ndarray:
        """A copy on the host."""
        return self._own.copy()

    def __del__(self) -> None:
        self._memory.remove(self._bounds)


class EmulatedEvent:
    """Launches are over when they return."""

    done = True

    def record(self) -> None:
        """Nothing to wait for."""


class EmulatedDevice:
    """A device without a GPU (ringmpi/backends/cuda/device.py).

    watch: kernels are looked at: races, bounds. kernels: the folder of their sources.
    """

    def __init__(self, *, watch: bool = False, kernels: Path = KERNELS) -> None:
        memory: list[tuple[int, int]] = []
        self._memory, self._watch, self._kernels = memory, watch, kernels
        self.cupy = SimpleNamespace(
            asarray=lambda host: EmulatedArray(host, memory),
            zeros=lambda shape, dtype: EmulatedArray(np.zeros(shape, dtype), memory),
            cuda=SimpleNamespace(Event=EmulatedEvent),
        )

    def kernel(self, instance: Instance) -> Any:
        """The kernel, built where it has not been."""
        path = build(instance, watch=self._watch, kernels=self._kernels)
        library = _load(str(path))

        def launch(grid: tuple[int], block: tuple[int], arguments: tuple[Any], *, shared_mem: int) -> None:
            (argument,) = arguments
            expected = library.emulator_argument_bytes(instance.name.encode())
            assert argument.nbytes == expected, f"{argument.nbytes} bytes are given, the kernel takes {expected}"
            bounds = np.array(self._memory, np.uint64)
            library.emulator_watch(bounds.ctypes.data_as(ctypes.c_void_p), len(bounds), int(self._watch))
            error = library.emulator_launch(
                instance.name.encode(), grid[0], block[0], shared_mem, argument.ctypes.data_as(ctypes.c_void_p)
            )
            if error:
                raise EmulatorError(error.decode())

        return launch


@cache
def _load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    library.emulator_launch.restype = ctypes.c_char_p
    library.emulator_launch.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p]
    library.emulator_watch.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    library.emulator_argument_bytes.argtypes = [ctypes.c_char_p]
    return library


@cache
def device() -> EmulatedDevice:
    """One for all tests."""
    return EmulatedDevice(watch=os.environ.get("EMULATED") == "watched")


def emulated(threads: int = 1, *, rounded: bool = False, **tiles: int) -> CudaBackend:
    """The CUDA backend on it; its threads and tiles are no choice."""
    return CudaBackend(device(), rounded=rounded)
