"""An export as a folder of .npy files, and contents.json, which says what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ringmpi.regular_file import regular_bytes
from ringmpi.storage.export.variables import EXPORT_SCHEMA, EXPORT_VERSION, Exported, Variable
from ringmpi.storage.files import sync

CONTENTS = "contents.json"


def write_npy(folder: Path, export: Exported) -> None:
    """Write all arrays into an empty folder, box by box: numpy.load maps them with mmap_mode="r"."""
    for variable in export.variables:
        _write_array(folder / f"{variable.name}.npy", variable)
    contents = {
        "schema": EXPORT_SCHEMA,
        "schema_version": EXPORT_VERSION,
        "arrays": {variable.name: _facts(variable) for variable in export.variables},
        "coordinates": {
            each.dim: {
                "size": each.size,
                "start_step": each.start_step,
                "listed": each.listed,
                "attributes": each.attributes,
            }
            for each in export.coordinates
        },
        "attributes": export.attributes,
    }
    (folder / CONTENTS).write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")
    sync(folder / CONTENTS)


def own_names(folder: Path) -> set[str] | None:
    """Names in a folder that an export has written; None where it is no such folder."""
    found = _json(folder / CONTENTS)
    if found.get("schema") != EXPORT_SCHEMA:
        return None
    return {CONTENTS, *(f"{name}.npy" for name in found.get("arrays", ()))}


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(regular_bytes(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _facts(variable: Variable) -> dict[str, Any]:
    return {
        "dims": variable.dims,
        "shape": variable.shape,
        "dtype": variable.dtype.name,
        "attributes": variable.attributes,
    }


def _write_array(path: Path, variable: Variable) -> None:
    """The header, then the boxes as they come: they are in C order."""
    dtype = variable.dtype.newbyteorder("<")
    with path.open("wb") as file:
        header = {"descr": dtype.str, "fortran_order": False, "shape": variable.shape}
        np.lib.format.write_array_header_2_0(file, header)
        for _, box in variable.boxes():
            file.write(np.ascontiguousarray(box, dtype).data)
    sync(path)
