"""Arrays of users that lie on a GPU: CuPy's, and those of libraries that share theirs with it. They go by the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.cuda.compiler import HOW_TO_GET
from ringmpi.core.given_numbers import refuse_masked
from ringmpi.errors import ShapeError

DEVICES = (2, 13)  # kDLCUDA and kDLCUDAManaged of DLPack


def is_on_device(array: Any) -> bool:
    """Whether a GPU holds it: by DLPack, or by the CUDA array interface.

    PyTorch's tensors that require gradients answer only the first: to_host then says what to do.
    """
    if isinstance(array, np.ndarray):
        return False
    try:
        if hasattr(array, "__dlpack_device__"):
            return array.__dlpack_device__()[0] in DEVICES
        return hasattr(array, "__cuda_array_interface__")
    except (AttributeError, TypeError, RuntimeError):
        return False


def to_host(name: str, array: Any) -> Any:
    """A NumPy array with the numbers of an array on a GPU; anything else as it is.

    Raises
    ------
    ShapeError
        If that needs CuPy, which is not here, or CuPy cannot read the array; if elements of it are masked.
    """
    refuse_masked(name, array)
    if not is_on_device(array):
        return array
    cupy, advice = _cupy(name), "Give a cupy.ndarray, or a NumPy array."
    try:
        there = _as_cupy(cupy, array)
        axes = sorted(range(there.ndim), key=lambda axis: -there.strides[axis])
        in_order = there.transpose(axes)  # as its numbers lie: where there are no gaps, they are copied as they are
        if not in_order.flags.c_contiguous:
            advice = "Make it contiguous: CuPy compiles a kernel to gather what has gaps, which needs a CUDA toolkit."
        return in_order.get().transpose(np.argsort(axes))
    except Exception as error:  # of what a compilation raises there is no end
        raise ShapeError(
            f"{name} is on a GPU, and CuPy cannot read it ({type(error).__name__}: {error}). {advice}"
        ) from error


def as_given(**arrays: Any) -> Callable[[NDArray[Any]], Any]:
    """What makes results of the kind that the arguments are of: CuPy arrays where these lie on a GPU.

    Raises
    ------
    ShapeError
        If some do and some do not, or CuPy is not here.
    """
    where: Mapping[str, bool] = {name: is_on_device(array) for name, array in arrays.items()}
    if not any(where.values()):
        return lambda host: host
    if not all(where.values()):
        there, here = ([name for name, is_there in where.items() if is_there is side] for side in (True, False))
        raise ShapeError(
            f"{', '.join(there)} on a GPU, {', '.join(here)} on the host; all arrays of a call must be in the same "
            f"memory."
        )
    asarray: Callable[[NDArray[Any]], Any] = _cupy(next(iter(arrays))).asarray
    return asarray


def _as_cupy(cupy: Any, array: Any) -> Any:
    if isinstance(array, cupy.ndarray):
        return array
    # Not by the CUDA array interface where there is DLPack: it knows no bfloat16.
    return cupy.from_dlpack(array) if hasattr(array, "__dlpack__") else cupy.asarray(array)


def _cupy(name: str) -> Any:
    try:
        import cupy

        return cupy
    except ImportError as error:
        raise ShapeError(
            f"{name} is on a GPU; reading it needs CuPy, which cannot be loaded ({error}): {HOW_TO_GET}. Or give a "
            f"NumPy array."
        ) from error
