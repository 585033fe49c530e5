"""An export as a Zarr store of version 3, with names of dimensions, as xarray reads it."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from ringmpi.errors import StorageError
from ringmpi.regular_file import regular_bytes
from ringmpi.storage.export.variables import EXPORT_SCHEMA, Exported

CHUNK_BYTES = 4 << 20
METADATA = "zarr.json"
ARRAYS = "arrays"


def write_zarr(folder: Path, export: Exported) -> None:
    """Write all arrays into an empty folder, a chunk at a time.

    Raises
    ------
    StorageError
        If the package zarr is missing.
    """
    zarr = _library()
    names = [*(each.name for each in export.variables), *(each.dim for each in export.coordinates if each.has_values)]
    group = zarr.create_group(
        store=str(folder), zarr_format=3, overwrite=True, attributes=export.attributes | {ARRAYS: names}
    )
    for variable in export.variables:
        array = group.create_array(
            variable.name,
            shape=variable.shape,
            dtype=variable.dtype,
            chunks=variable.box_shape(CHUNK_BYTES),
            dimension_names=variable.dims,
            attributes=variable.attributes,
        )
        for box, numbers in variable.boxes(CHUNK_BYTES):
            array[box] = numbers
    for each in export.coordinates:
        if each.has_values:
            group.create_array(each.dim, data=each.values(), dimension_names=(each.dim,), attributes=each.attributes)


def own_names(folder: Path) -> set[str] | None:
    """Names in a folder that an export has written; None where it is no such store."""
    try:
        attributes: dict[str, Any] = json.loads(regular_bytes(folder / METADATA))["attributes"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return {METADATA, *attributes.get(ARRAYS, ())} if attributes.get("schema") == EXPORT_SCHEMA else None


def _library() -> Any:
    try:
        return importlib.import_module("zarr")
    except ImportError:
        raise StorageError(
            "an export to Zarr needs the package zarr, which is missing. Install it: pip install 'zarr>=3'."
        ) from None
