"""An export as netCDF-4: an HDF5 file whose axes are dimension scales, as xarray, ncdump and others read it.

Written by h5py: what makes an HDF5 file netCDF are the scales
(https://docs.unidata.ucar.edu/netcdf-c/current/file_format_specifications.html).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ringmpi.errors import StorageError
from ringmpi.storage.bits import create_floats
from ringmpi.storage.export.variables import EXPORT_SCHEMA, Coordinate, Exported, Variable
from ringmpi.storage.files import open_file, replacing

NOT_A_VARIABLE = "This is a netCDF dimension but not a netCDF variable.{:10d}"  # of the format: the length, 10 wide


def write_netcdf(path: Path, export: Exported) -> None:
    """Write all arrays and coordinates to one file, which appears whole or not at all."""
    with replacing(path) as file:
        file.attrs.update({name: _writable(value) for name, value in export.attributes.items()})
        for nth, coordinate in enumerate(export.coordinates):
            _write_coordinate(file, coordinate, nth)
        for variable in export.variables:
            _write_variable(file, variable)


def own_names(path: Path) -> set[str] | None:
    """Nothing but itself, where a file is an export; None where it is none."""
    try:
        with open_file(path) as file:
            return set() if file.attrs.get("schema") == EXPORT_SCHEMA else None
    except StorageError:
        return None


def _write_coordinate(file: Any, coordinate: Coordinate, nth: int) -> None:
    """A dimension, and what its indices are where they are anything."""
    if not coordinate.has_values:
        scale = file.create_dataset(coordinate.dim, shape=(coordinate.size,), dtype=">f4")
        scale.make_scale(NOT_A_VARIABLE.format(coordinate.size))
    else:
        scale = file.create_dataset(coordinate.dim, data=coordinate.values(), dtype="<i8")
        scale.make_scale(coordinate.dim)
        scale.attrs.update(coordinate.attributes)
    scale.attrs["_Netcdf4Dimid"] = np.int32(nth)


def _write_variable(file: Any, variable: Variable) -> None:
    if variable.dtype.kind == "f":
        dataset = create_floats(file, variable.name, variable.shape, variable.dtype)
    else:
        dataset = file.create_dataset(variable.name, shape=variable.shape, dtype=variable.dtype.newbyteorder("<"))
    for box, numbers in variable.boxes():
        dataset[box] = numbers
    for axis, dim in enumerate(variable.dims):
        dataset.dims[axis].attach_scale(file[dim])
    dataset.attrs.update({name: _writable(value) for name, value in variable.attributes.items()})


def _writable(value: Any) -> Any:
    """Whole numbers as netCDF has them: 64 bits."""
    return np.int64(value) if isinstance(value, int) else value
