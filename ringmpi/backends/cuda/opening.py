"""Whether there is a GPU to compute on, which one is this rank's, and the backend on it."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

from ringmpi.backends.cuda import compiler
from ringmpi.backends.cuda.attend import CudaBackend
from ringmpi.backends.cuda.compiler import HOW_TO_GET
from ringmpi.backends.cuda.cupy_device import CupyDevice
from ringmpi.backends.cuda.kernel_cache import cached_kernel
from ringmpi.errors import BackendError

OLDEST = (8, 0)  # compute capability: asynchronous copies, products of bfloat16
CAPABILITY = (75, 76)  # cudaDevAttrComputeCapabilityMajor and Minor
COMPUTE_MODE, PROHIBITED = 20, 2  # cudaDevAttrComputeMode, cudaComputeModeProhibited
ELSE = 'Or use backend "native".'


def open_backend(*, threads: int, local_rank: int) -> CudaBackend:
    """The backend on the GPU of this rank.

    Parameters
    ----------
    threads : int
        Of no meaning here: kernels are started by one.
    local_rank : int
        Which of the ranks on this node this one is.

    Raises
    ------
    BackendError
        If there is no GPU that it can use; what is missing, and how to get it.
    """
    return CudaBackend(open_device(local_rank))


def open_device(local_rank: int = 0) -> CupyDevice:
    """The GPU of this rank: of the usable ones the one of its number, in turn where there are fewer than ranks.

    It becomes the current one of this thread, whichever was it before.

    Raises
    ------
    BackendError
        As `open_backend`.
    """
    cupy, usable = _usable()
    device = _opened(usable[local_rank % len(usable)], cupy)
    device.make_current()  # each time: an earlier opening may be of another thread, or another GPU current since
    return device


def why_not() -> str:
    """Why there is no GPU to compute on; empty where there is one. Imports CuPy only where it is installed."""
    try:
        _usable()
    except BackendError as error:
        return str(error)
    return ""


@cache
def _opened(index: int, cupy: Any) -> CupyDevice:
    """One a process and GPU: its streams, memory and kernels serve all passes."""
    return CupyDevice(cupy, index, cached_kernel)


def _usable() -> tuple[Any, list[int]]:
    """CuPy, and which of the GPUs that this process sees can be used. Makes none of them current."""
    cupy = _cupy()
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BackendError(
            f'backend "cuda" finds no GPU ({error}): this machine has none, the job was given none (Slurm: --gpus), or '
            f"the driver is too old for the CUDA version of CuPy ({HOW_TO_GET}). {ELSE}"
        ) from error
    if not count:
        raise BackendError(f'backend "cuda" sees no GPU: CUDA_VISIBLE_DEVICES hides all of them. Unset it. {ELSE}')
    attribute = cupy.cuda.runtime.deviceGetAttribute
    capabilities = [tuple(attribute(which, index) for which in CAPABILITY) for index in range(count)]
    closed = [attribute(COMPUTE_MODE, index) == PROHIBITED for index in range(count)]
    usable = [index for index in range(count) if capabilities[index] >= OLDEST and not closed[index]]
    if not usable:
        found = [
            f"{major}.{minor}{' (compute mode Prohibited)' * prohibited}"
            for (major, minor), prohibited in zip(capabilities, closed, strict=True)
        ]
        raise BackendError(
            f'backend "cuda" needs a GPU of compute capability 8.0 or newer (A100, H100, ...); those here '
            f"have {', '.join(found)}. {ELSE}"
        )
    compiler.version()  # raises where NVRTC is missing
    return cupy, usable


def _cupy() -> Any:
    if find_spec("cupy") is None:
        raise BackendError(f'backend "cuda" needs CuPy, which is not installed: {HOW_TO_GET}. {ELSE}')
    try:
        import cupy

        return cupy
    except Exception as error:  # ImportError, or what a broken installation brings
        raise BackendError(
            f'backend "cuda" needs CuPy, which cannot be loaded ({type(error).__name__}: {error}). Reinstall it: '
            f"{HOW_TO_GET}. {ELSE}"
        ) from error
