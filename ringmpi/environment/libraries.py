"""The libraries that ringmpi stands on. Those that start MPI or a GPU are asked in child processes."""

from __future__ import annotations

import json
import shutil
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ringmpi.environment.child import Answer, ask, ask_python

PACKAGES = (
    "click",
    "h5netcdf",
    "h5py",
    "jinja2",
    "matplotlib",
    "ml_dtypes",
    "mpi4py",
    "numpy",
    "pydantic",
    "rich",
    "threadpoolctl",
    "tomli_w",
    "xarray",
    "zarr",
)
CUPY_PACKAGES = ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x", "cupy-rocm-5-0")
LAUNCHERS = ("mpirun", "mpiexec", "srun")
NVRTC_PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
BACKENDS = ("numpy", "native")
USABLE = "usable"
CUDA_PROGRAM = f"""
import json
from ringmpi.backends.cuda.opening import why_not
print(json.dumps({{"backend cuda": why_not() or "{USABLE}"}}))
"""
GPU_QUERY = ("--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader")
CUPY_PROGRAM = """
import json, cupy
runtime = cupy.cuda.runtime
print(json.dumps({"CUDA runtime": runtime.runtimeGetVersion(), "devices": runtime.getDeviceCount()}))
"""


def packages() -> dict[str, str | None]:
    """Versions of the packages that ringmpi uses; None: not installed."""
    return {name: installed(name) for name in PACKAGES}


def installed(name: str) -> str | None:
    """Version of a package, without importing it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def mpi() -> dict[str, Any]:
    """mpi4py, the MPI library, the level of threads that it grants. "error": it is not found; "start": why not."""
    answer = ask_python("ringmpi.comm.about_mpi")
    facts = json_lines(answer)
    if answer.failure:
        facts["error" if not facts else "start"] = answer.failure
    return facts


def launcher() -> dict[str, str]:
    """The program that starts ranks: the one beside this Python, else the first on the PATH."""
    beside = [Path(sys.executable).with_name(name) for name in LAUNCHERS]
    found = [str(path) for path in beside if path.exists()] + [p for name in LAUNCHERS if (p := shutil.which(name))]
    if not found:
        return {}
    answer = ask(found[0], "--version")
    lines = [" ".join(line.split()) for line in answer.text.splitlines() if line.strip()]
    return {"program": found[0], "version": " ".join(lines[:2]) or answer.failure}


def hdf5() -> dict[str, Any]:
    """h5py and HDF5. "error": it cannot be loaded."""
    answer = ask_python("ringmpi.storage.about_hdf5")
    return json_lines(answer) or {"error": answer.failure or "no answer"}


def numpy() -> dict[str, Any]:
    """NumPy and the linear algebra under it, with the threads that it would use now. "error": cannot be loaded."""
    try:
        numpy_version = import_module("numpy").__version__
        pools = import_module("threadpoolctl").threadpool_info()
    except Exception as error:  # ImportError, or what a broken library brings
        return {"error": f"{type(error).__name__}: {error}"}
    shown = ("internal_api", "version", "num_threads", "threading_layer", "architecture")
    return {
        "NumPy": numpy_version,
        "BLAS": [{name: pool[name] for name in shown if name in pool} for pool in pools if pool["user_api"] == "blas"],
    }


def gpus() -> dict[str, Any]:
    """GPUs that the driver shows, CuPy, NVRTC, and why they cannot be used. CuPy is not imported here."""
    answer = ask("nvidia-smi", *GPU_QUERY)
    found = [line.strip() for line in answer.text.splitlines() if line.strip()] if not answer.failure else []
    cupy = {name: number for name in CUPY_PACKAGES if (number := installed(name))}
    nvrtc = {name: number for name in NVRTC_PACKAGES if (number := installed(name))}
    facts: dict[str, Any] = {"devices": found, "nvidia-smi": answer.failure or "answers"}
    facts |= {"CuPy": cupy or None, "NVRTC": nvrtc or None}
    if cupy:
        answer = ask(sys.executable, "-c", CUPY_PROGRAM)
        facts |= {f"CuPy {name}": value for name, value in json_lines(answer).items()}
        facts |= {"CuPy error": answer.failure} if answer.failure else {}
    answer = ask(sys.executable, "-c", CUDA_PROGRAM)
    return facts | (json_lines(answer) or {"backend cuda": answer.failure or "no answer"})


def backends(gpu: dict[str, Any]) -> list[str]:
    """The backends that this version has and that can be loaded; `gpu`: what `gpus` has found."""
    from ringmpi.backends import get_backend
    from ringmpi.errors import BackendError

    usable = []
    for name in BACKENDS:
        try:
            get_backend(name)
        except (BackendError, ImportError):
            continue
        usable.append(name)
    return [*usable, *["cuda"] * (gpu["backend cuda"] == USABLE)]


def native_kernels() -> dict[str, Any]:
    """The instruction sets that the native kernels are built for and this machine runs. "error": there are none."""
    try:
        return {"instruction sets": list(import_module("ringmpi.backends.native.shared_library").usable())}
    except Exception as error:  # BackendError, or what a broken NumPy brings
        return {"error": str(error)}


def json_lines(answer: Answer) -> dict[str, Any]:
    """The JSON objects in an answer, put together; other lines (a library's chatter) are left out."""
    facts: dict[str, Any] = {}
    for line in answer.text.splitlines():
        try:
            parsed = json.loads(line)
        except ValueError:
            continue
        facts |= parsed if isinstance(parsed, dict) else {}
    return facts
