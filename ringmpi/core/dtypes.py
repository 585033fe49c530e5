"""Which dtypes go in, which one accumulates, which one is wide enough to judge."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ringmpi.errors import ShapeError

bfloat16 = np.dtype(ml_dtypes.bfloat16)
SUPPORTED = (np.dtype(np.float16), bfloat16, np.dtype(np.float32), np.dtype(np.float64))


def native(dtype: np.dtype) -> np.dtype:
    """`dtype` in this machine's byte order."""
    return np.dtype(dtype).newbyteorder("=")


def check_dtype(name: str, dtype: np.dtype) -> np.dtype:
    """The native form of a supported `dtype`; ShapeError names the array otherwise."""
    if native(dtype) not in SUPPORTED:
        raise ShapeError(
            f"{name} has dtype {dtype}; attention takes float16, bfloat16 (ml_dtypes), float32 or float64. "
            f"Convert it first, for example {name}.astype('float32')."
        )
    return native(dtype)


def accumulate_dtype(dtype: np.dtype) -> np.dtype:
    """float64 for float64, else float32: the dtype of scores, Partials and log_sum_exp."""
    return np.dtype(np.float64 if native(dtype) == np.float64 else np.float32)


def wide_dtype(dtype: np.dtype) -> np.dtype:
    """A dtype wider than the accumulation: float64, and for float64 the platform's longdouble."""
    return np.dtype(np.longdouble if native(dtype) == np.float64 else np.float64)


def epsilon(dtype: np.dtype) -> float:
    """Distance from 1 to the next number of `dtype`."""
    return float(ml_dtypes.finfo(native(dtype)).eps)  # type: ignore[no-untyped-call]
