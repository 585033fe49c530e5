"""Kernels built by g++ for the emulated device (emulator/), one shared library for each."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

EMULATOR = Path(__file__).parent / "emulator"
KERNELS = Path(__file__).parents[2] / "ringmpi/backends/cuda/kernels"
FLAGS = (
    "-std=c++20",
    "-O1",
    "-g1",
    "-march=native",
    "-ffp-contract=off",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
)
RUNTIME = ("-c", "-O2")  # of the device itself, whose tensor cores take most of the time
WATCH = ("-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0", "-Wno-tsan")
BUILD_SECONDS = 300


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
    content = b"".join(path.read_bytes() for path in files) + repr((FLAGS, RUNTIME, WATCH)).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def _compile(target: Path, sources: list[str | Path], kernels: Path, *flags: str) -> Path:
    """Compile once, whoever asks first; others wait. A target appears whole or not at all."""
    with Path(f"{target}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            part = f"{target}.part"
            names = f"-ffile-prefix-map={kernels}/="  # in messages: where it was built is of no interest
            command = ["g++", *FLAGS, *flags, names, f"-I{EMULATOR}", f"-I{kernels}", "-o", part, *map(str, sources)]
            result = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
            if result.returncode:
                raise RuntimeError(f"{' '.join(command)}\n{result.stderr[:4000]}")
            Path(part).rename(target)
    return target


def build(instance: Any, *, watch: bool, kernels: Path = KERNELS) -> Path:
    """The shared library with one kernel.

    Parameters
    ----------
    instance : Instance, or what has its `name` and `source`
    watch : bool
        Its loads and stores are looked at.
    kernels : Path
        The folder of its sources.
    """
    name = instance.name
    folder, own_files = build_folder(), sorted(EMULATOR.glob("*"))
    digest = _digest(*own_files, kernels / "primitives.cuh")
    sources = sorted(EMULATOR.glob("*.cpp"))
    runtime = [_compile(folder / f"{digest}-{source.stem}.o", [source], kernels, *RUNTIME) for source in sources]
    digest = _digest(*own_files, *sorted(kernels.glob("*.cuh")))
    own = folder / f"{digest}-{hashlib.sha256(name.encode()).hexdigest()[:12]}{'-watched' * watch}"
    Path(f"{own}.cpp").write_text(f'#include "{instance.source}"\nEMULATE("{name}", {name});\n')
    kernel = _compile(Path(f"{own}.o"), [f"{own}.cpp"], kernels, "-c", *(WATCH if watch else ()))
    return _compile(Path(f"{own}.so"), [*runtime, kernel], kernels, "-shared", "-ldl")


class KernelLibrary:
    """A library of `build`, loaded.

    Parameters
    ----------
    path : Path
    mutant : int
        Which one of the mutants in its sources is to run (mutations.py); 0: none.

    Attributes
    ----------
    met : int
        How often the last launch came by the place of the mutant.
    """

    met = 0

    def __init__(self, path: Path, mutant: int = 0) -> None:
        self._library, self._mutant = _load(str(path)), mutant

    def launch(
        self, name: str, size: tuple[int, int], argument: Any, shared_bytes: int, bounds: Any, *, watch: bool
    ) -> None:
        """Run a kernel on (blocks, threads of one).

        Parameters
        ----------
        name : str
            The C++ expression that names it.
        argument : record
        shared_bytes : int
        bounds : uint64 [n, 2]
            Where the buffers of the device start and stop, ascending.
        watch : bool
            Loads and stores are looked at; takes a build that lets them be.

        Raises
        ------
        EmulatorError
        """
        expected = self._library.emulator_argument_bytes(name.encode())
        assert argument.nbytes == expected, f"{argument.nbytes} bytes are given, the kernel takes {expected}"
        bounds = np.ascontiguousarray(bounds, np.uint64)
        self._library.emulator_watch(bounds.ctypes.data_as(ctypes.c_void_p), len(bounds), int(watch))
        self._library.emulator_choose(self._mutant)
        pointer = argument.ctypes.data_as(ctypes.c_void_p)
        error = self._library.emulator_launch(name.encode(), *size, shared_bytes, pointer)
        self.met = self._library.emulator_met()
        if error:
            raise EmulatorError(error.decode())


class LibraryRunner:
    """Runs kernels for an EagerDevice (eager.py), built from the sources in a folder."""

    def __init__(self, *, watch: bool = False, kernels: Path = KERNELS, mutant: int = 0) -> None:
        self._watch, self._kernels, self._mutant = watch, kernels, mutant
        self.met = 0  # how often the place of the mutant was come by

    def __call__(self, kernel: Any, size: tuple[int, int], argument: Any, bounds: Any) -> None:
        """One launch."""
        library = KernelLibrary(build(kernel, watch=self._watch, kernels=self._kernels), self._mutant)
        library.launch(kernel.name, size, argument, kernel.shared_bytes, bounds, watch=self._watch)
        self.met += library.met


@cache
def _load(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    library.emulator_launch.restype = ctypes.c_char_p
    library.emulator_launch.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p]
    library.emulator_watch.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    library.emulator_choose.argtypes = [ctypes.c_int]
    library.emulator_met.restype = ctypes.c_long
    library.emulator_argument_bytes.argtypes = [ctypes.c_char_p]
    return library
