"""Refuses what a kernel cannot work with, before it reads beyond its arrays or sums in another dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from ringmpi.core.gradients import Gradients
from ringmpi.core.work import COLUMNS, KEY_START, KEY_STOP, ROW_START, ROW_STOP, Work
from ringmpi.errors import ShapeError


def check_work(work: Work, queries: int, keys: int) -> None:
    """ShapeError where a kernel would reach beyond its arrays."""
    if work.ndim != 2 or work.shape[1] != COLUMNS:
        raise ShapeError(f"work is {work.shape}; expected [items, {COLUMNS}] (ringmpi/core/work.py).")
    if not len(work):
        return
    starts, stops = work[:, [ROW_START, KEY_START]], work[:, [ROW_STOP, KEY_STOP]]
    if (starts < 0).any() or (stops > (queries, keys)).any():
        raise ShapeError(
            f"work refers to rows up to {work[:, ROW_STOP].max()} and keys up to {work[:, KEY_STOP].max()}, "
            f"but there are {queries} queries and {keys} keys. Make it for these arrays."
        )


def check_sums(into: Gradients, wide: np.dtype) -> None:
    """ShapeError where a kernel cannot add to these arrays: it sums in `wide`."""
    sums: tuple[Any, ...] = (into.query, into.key, into.value)
    for array in sums:
        if array is not None and array.dtype != wide:
            raise ShapeError(f"gradients are summed in {array.dtype}; expected {wide} for this input.")
