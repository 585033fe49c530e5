"""Tables in a file: texts and numbers by rank, ring step or run, a dataset for each column."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import h5py

from ringmpi.storage.layout_entries import DatasetLayout


def write_table(group: Any, layouts: Iterable[DatasetLayout], values: object) -> None:
    """Write the attributes of `values` that have the names of `layouts`: texts, int64 or float64."""
    for layout in layouts:
        dtype = h5py.string_dtype() if layout.dtype == "string" else f"<{layout.dtype[0]}8"
        layout.describe(group.create_dataset(layout.name, data=getattr(values, layout.name), dtype=dtype))
