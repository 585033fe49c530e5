"""What of an output is exported: arrays with named axes, coordinates, units, read box by box in C order."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
from numpy.typing import NDArray

from ringmpi.core.dtypes import bfloat16
from ringmpi.errors import StorageError
from ringmpi.storage.bits import bits_dtype, read_bits, stored_number
from ringmpi.storage.digest import new_digest
from ringmpi.storage.files import storage_errors
from ringmpi.storage.hdf5_links import check_sources
from ringmpi.storage.layout import DIGEST_ATTRIBUTE, PROVENANCE, TIMELINE
from ringmpi.storage.record_layout import BLOCK_ATTRIBUTE, KEYS_ATTRIBUTE, RECORD, SINKS, TOP_ROWS

EXPORT_SCHEMA = "ringmpi-export"
EXPORT_VERSION = 1
BOX_BYTES = 16 << 20  # of an array that is in memory at once
BATCH = "(batch)"
COLUMN = "column"
RANGES = "ranges"
# Axes of storage/layout.py -> dimensions of an export. Other axes keep their names.
DIMENSIONS = {
    BATCH: "batch",
    "query_heads": "head",
    "key_heads": "key_head",
    "query_length": "position",
    "key_length": "key_position",
    "value_dim": "channel",
    "head_dim": "head_channel",
    "query_blocks": "query_block",
    "key_blocks": "key_block",
    "rows": "row",
    "k": "nth",
}
MEANINGS = {
    "batch": "batch entry",
    "head": "query head",
    "key_head": "key head",
    "position": "position of the query",
    "key_position": "position of the key",
    "channel": "channel of value and output",
    "head_channel": "channel of query and key",
    "query_block": "first position of the block of queries",
    "key_block": "first position of the block of keys",
    "row": "position of the chosen query",
    "nth": "0: the key with the largest weight",
}
DESCRIBED = ("axes", "unit", "meaning", DIGEST_ATTRIBUTE)  # become dimensions, units, long_name, source_blake2b

Box: TypeAlias = tuple[slice, ...]


@dataclass(frozen=True)
class Variable:
    """One array of an export.

    Attributes
    ----------
    name : str
        In the export: without groups.
    dims : tuple of str
    shape : tuple of int
    dtype : dtype
        In the export, native: bfloat16 has become float32, without a change of any value.
    attributes : dict
        units, long_name and others; text or numbers.
    dataset : h5py.Dataset
        Where it is read.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    attributes: dict[str, Any]
    dataset: Any

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array in the export."""
        return math.prod(self.shape) * self.dtype.itemsize

    def box_shape(self, box_bytes: int = BOX_BYTES) -> tuple[int, ...]:
        """Elements along each axis of a box: of the last axes as much as fits, so that boxes follow each other."""
        return box_shape(self.shape, self.dtype.itemsize, box_bytes)

    def boxes(self, box_bytes: int = BOX_BYTES) -> Iterator[tuple[Box, NDArray[Any]]]:
        """All of the array, in C order.

        Raises
        ------
        StorageError
            If it cannot be read; after the last box, if its bits are not those that were written.
        """
        path, digest = Path(self.dataset.file.filename), new_digest()
        bits, value = stored_number(self.dataset)
        for box in boxes(self.shape, self.box_shape(box_bytes)):
            start, count = [part.start for part in box], [part.stop - part.start for part in box]
            with storage_errors("read", path, self.dataset.name):
                raw = read_bits(self.dataset, tuple(start), tuple(count), bits)
            raw = raw.astype(bits_dtype(value), copy=False)
            digest.update(raw.data)
            yield box, raw.astype(f"u{value.itemsize}", copy=False).view(value).astype(self.dtype, copy=False)
        recorded = self.dataset.attrs.get(DIGEST_ATTRIBUTE)
        if recorded is not None and str(recorded) != digest.hexdigest():
            raise StorageError(
                f"dataset {self.dataset.name} of {path} was changed after it was written: its digest differs. "
                f"Nothing was exported; ringmpi verify says what changed."
            )


@dataclass(frozen=True)
class Coordinate:
    """What the indices along one dimension are.

    start_step : of positions, or first positions of blocks; None where they are listed, or only number columns
    listed : the positions of chosen queries; None where they follow from `start_step`
    """

    dim: str
    size: int
    start_step: tuple[int, int] | None
    attributes: dict[str, Any]
    listed: tuple[int, ...] | None = None

    @property
    def has_values(self) -> bool:
        """Whether indices are anything beyond numbers."""
        return self.listed is not None or self.start_step is not None

    def values(self) -> NDArray[np.int64]:
        """int64 [size]."""
        if self.listed is not None:
            return np.array(self.listed, np.int64)
        start, step = self.start_step or (0, 1)
        return np.arange(self.size, dtype=np.int64) * step + start


@dataclass(frozen=True)
class Exported:
    """Everything that is exported of an output; usable while its file is open."""

    variables: tuple[Variable, ...]
    coordinates: tuple[Coordinate, ...]
    attributes: dict[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(each.nbytes for each in self.variables)


def box_shape(shape: Sequence[int], itemsize: int, box_bytes: int) -> tuple[int, ...]:
    """Elements along each axis of a box of at most `box_bytes` (one element at least)."""
    extent, room = [1] * len(shape), max(1, box_bytes // itemsize)
    for axis in reversed(range(len(shape))):
        extent[axis] = max(1, min(shape[axis], room))
        room //= extent[axis]
        if extent[axis] < shape[axis]:
            break
    return tuple(extent)


def boxes(shape: Sequence[int], extent: Sequence[int]) -> Iterator[Box]:
    """An array cut into boxes, in C order."""
    cuts = [range(0, length, step) for length, step in zip(shape, extent, strict=True)]
    for starts in product(*cuts):
        yield tuple(slice(at, min(at + n, end)) for at, n, end in zip(starts, extent, shape, strict=True))


def exported(path: Path, file: Any, *, widen_halves: bool = False) -> Exported:
    """What an open output file gives to an export: datasets at its root and of /record, and where it comes from.

    Parameters
    ----------
    path : Path
    file : h5py.File
        Of an output that `Results` has accepted.
    widen_halves : bool
        float16 becomes float32: for formats that have no floats of 16 bits.

    Raises
    ------
    StorageError
        If axes disagree, or a part of a virtual dataset is missing.
    """
    groups = [file, *([file[RECORD]] if RECORD in file else [])]
    datasets = [each for group in groups for each in group.values() if isinstance(each, h5py.Dataset)]
    for dataset in datasets:
        check_sources(path, dataset)
    variables = tuple(_variable(dataset, widen_halves) for dataset in datasets)
    return Exported(variables, _coordinates(path, variables), _attributes(file))


def _variable(dataset: Any, widen_halves: bool) -> Variable:
    value = stored_number(dataset)[1]
    wide = value == bfloat16 or (widen_halves and value == np.float16)
    name = dataset.name.rpartition("/")[2]
    return Variable(
        name=name,
        dims=_dims(name, dataset),
        shape=tuple(dataset.shape),
        dtype=np.dtype(np.float32) if wide else value,
        attributes=_described(dataset) | ({"stored_dtype": value.name} if wide else {}),
        dataset=dataset,
    )


def _dims(name: str, dataset: Any) -> tuple[str, ...]:
    """Names of the axes by what the file says of them."""
    axes = [axis for axis in str(dataset.attrs.get("axes", "")).split(", ") if axis]
    if BATCH in axes and len(axes) > dataset.ndim:
        axes.remove(BATCH)
    if len(axes) != dataset.ndim:
        return tuple(f"{name}_axis{n}" for n in range(dataset.ndim))
    return tuple(_dimension(name, axis) for axis in axes)


def _dimension(name: str, axis: str) -> str:
    if " " in axis:
        return COLUMN
    return f"{name.removesuffix('s')}_range" if axis == RANGES else DIMENSIONS.get(axis, axis)


def _described(dataset: Any) -> dict[str, Any]:
    """Unit, meaning and all other attributes of a dataset, for an export."""
    attributes = {key: _plain(value) for key, value in dataset.attrs.items() if key not in DESCRIBED}
    named = {"units": "unit", "long_name": "meaning", "source_blake2b": DIGEST_ATTRIBUTE}
    described = {new: str(dataset.attrs[old]) for new, old in named.items() if dataset.attrs.get(old)}
    if dataset.name == SINKS and "long_name" in described:
        keys = int(dataset.attrs[KEYS_ATTRIBUTE])
        described["long_name"] = described["long_name"].replace("the first keys", f"the first {keys} keys")
    columns = [axis for axis in str(dataset.attrs.get("axes", "")).split(", ") if " " in axis]
    return described | ({"columns": columns[0]} if columns else {}) | attributes


def _plain(value: Any) -> Any:
    """An attribute as text or number."""
    if isinstance(value, np.ndarray):
        return json.dumps(value.tolist())
    return value.item() if isinstance(value, np.generic) else value


def _coordinates(path: Path, variables: Sequence[Variable]) -> tuple[Coordinate, ...]:
    sizes: dict[str, tuple[int, str]] = {}
    for variable in variables:
        for dim, size in zip(variable.dims, variable.shape, strict=True):
            known, where = sizes.setdefault(dim, (size, variable.name))
            if size != known:
                raise StorageError(
                    f"{path}: {variable.name} has {size} along {dim}, {where} has {known}. It was changed; run again."
                )
    blocks = (each.attributes.get(BLOCK_ATTRIBUTE) for each in variables)
    block = next((block for block in blocks if block is not None), 1)
    chosen = next((each for each in variables if each.dataset.name == TOP_ROWS), None)
    positions = None if chosen is None else tuple(chosen.dataset[...].tolist())
    return tuple(_coordinate(dim, size, int(block), positions) for dim, (size, _) in sizes.items())


def _coordinate(dim: str, size: int, block: int, chosen: tuple[int, ...] | None) -> Coordinate:
    if dim not in MEANINGS:
        return Coordinate(dim, size, None, {})
    attributes = {"long_name": MEANINGS[dim]}
    if dim != "nth" and ("position" in MEANINGS[dim]):
        attributes["units"] = "positions"
    if dim == "row":
        return Coordinate(dim, size, None, attributes, chosen)
    return Coordinate(dim, size, (0, block if "block" in dim else 1), attributes)


def _attributes(file: Any) -> dict[str, Any]:
    """Where the arrays come from."""
    provenance = {key: _plain(value) for key, value in file[PROVENANCE].attrs.items()}
    counts = {key: _plain(value) for key, value in file[TIMELINE].attrs.items()}
    versions = json.loads(provenance["versions"])
    return {
        "title": "exact attention, exported from an output of ringmpi",
        "source": f"ringmpi {versions.get('ringmpi', '')}".strip(),
        "schema": EXPORT_SCHEMA,
        "schema_version": EXPORT_VERSION,
        **provenance,
        **counts,
    }
