"""Numbers of users: what NumPy would take for one, and is none, is refused."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringmpi.core.dtypes import bfloat16
from ringmpi.errors import ShapeError


def refuse_masked(name: str, array: object) -> None:
    """ShapeError where elements of an array are masked: nothing here reads such a mask."""
    if np.ma.is_masked(array):
        raise ShapeError(
            f"{name} is an array with masked elements, which would be read as if they were not. Fill them "
            f"({name}.filled(...)), and say with mask= which pairs attend."
        )


def given_numbers(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """One or more numbers as float64, of any shape; ShapeError for strings, bools, complex and too large ones."""
    refuse_masked(name, values)
    try:
        found = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ShapeError(f"{name} is a {type(values).__name__}; expected real numbers ({error}).") from None
    if not _are_real(found):
        raise ShapeError(f"{name} holds {_kind(found)}; expected real numbers. Convert it first.")
    try:
        return found.astype(np.float64)
    except OverflowError:
        raise ShapeError(f"{name} is larger than any float64; it must be finite.") from None


def given_number(name: str, value: Any) -> float:
    """One number; ShapeError for what is none, as in `given_numbers`."""
    found = given_numbers(name, value)
    if found.ndim:
        raise ShapeError(f"{name} has shape {found.shape}; expected one number.")
    return float(found)


def _are_real(found: NDArray[Any]) -> bool:
    if found.dtype == object:  # whole numbers beyond 64 bits, fractions
        return all(isinstance(each, Real) and not isinstance(each, bool) for each in found.flat)
    return found.dtype.kind in "iuf" or found.dtype == bfloat16


def _kind(found: NDArray[Any]) -> str:
    """What the elements are, in the word of Python."""
    return type(found.flat[0]).__name__ if found.dtype == object else found.dtype.name
