"""What is in an HDF5 file, whoever wrote it and however damaged: plain entries, from which nothing is hidden.

What cannot be read is an entry with a `problem`, not an error, so that the rest of the file is shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ringmpi.errors import StorageError
from ringmpi.storage.bits import stored_float
from ringmpi.storage.files import open_file, storage_errors
from ringmpi.storage.hdf5_links import check_external, check_sources, dangling

GROUP, DATASET, LINK, UNREADABLE = "group", "dataset", "link", "unreadable"
ELEMENTS_SHOWN = 16  # of an attribute that is an array
READ_BYTES = 64 << 20


@dataclass(frozen=True)
class Entry:
    """One object of a file.

    Attributes
    ----------
    path : str
        In the file; "/" is its root.
    kind : str
        "group", "dataset", "link" (one that leads nowhere, or back to what is listed already), "unreadable".
    shape : tuple of int or None
        Of a dataset; None where it holds nothing.
    dtype : str
        Of the numbers in memory, bfloat16 by its name; "string", "compound (a, b)" and so on for others.
    storage : str
        How a dataset lies in the file, if not in one stretch: "chunks (9, 64, 64), deflate", "virtual, 4 sources".
    attributes : dict
        JSON-able.
    problem : str
        What is wrong; empty for nothing.
    """

    path: str
    kind: str
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    storage: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit("/", 1)[-1] or "/"

    @property
    def parent(self) -> str:
        """The path of the group that it is in."""
        return self.path.rsplit("/", 1)[0] or "/"


def read_tree(path: Path) -> tuple[Entry, ...]:
    """All objects of an HDF5 file, each before what is in it, numbers in names in their order.

    Raises
    ------
    StorageError
        If the file cannot be opened as HDF5.
    """
    with open_file(path) as file:
        return tuple(_entries(path, file))


def check_readable(path: Path, name: str) -> None:
    """Read a whole dataset, in bounded memory, and forget it; StorageError where HDF5 cannot."""
    with open_file(path) as file, storage_errors("read", path, name):
        dataset = file[name]
        if dataset.shape is None:
            return
        if dataset.chunks:
            for box in dataset.iter_chunks():
                dataset[box]
        elif dataset.ndim == 0:
            dataset[()]
        else:
            rows = max(1, READ_BYTES // max(1, dataset.nbytes // max(1, len(dataset))))
            for start in range(0, len(dataset), rows):
                dataset[start : start + rows]


def _entries(path: Path, file: Any) -> Iterator[Entry]:
    seen: set[Any] = set()
    waiting = ["/"]
    while waiting:
        name = waiting.pop()
        try:
            thing = file.get(name)
            address = None if thing is None else (h5py.h5o.get_info(thing.id).fileno, h5py.h5o.get_info(thing.id).addr)
            if thing is None or address in seen:
                yield _link(file, name, thing)
                continue
            seen.add(address)
            if isinstance(thing, h5py.Group):
                inside = sorted(map(os.fsdecode, thing), key=_natural, reverse=True)
                yield Entry(name, GROUP, attributes=_attributes(thing))
                waiting += [f"{name.rstrip('/')}/{child}" for child in inside]
            elif isinstance(thing, h5py.Dataset):
                yield _dataset(path, name, thing)
            else:
                yield Entry(name, type(thing).__name__.lower())
        except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
            yield Entry(name, UNREADABLE, problem=" ".join(str(error).split()) or "cannot be read")


def _natural(name: str) -> list[tuple[int, str]]:
    """layer2 before layer10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _link(file: Any, name: str, thing: Any) -> Entry:
    if thing is not None:
        return Entry(name, LINK, storage=f"the same as {thing.name}" if thing.name != name else "listed above")
    if (target := dangling(file, name)) is None:
        file[name]  # raises: it is there, and cannot be read
    return Entry(name, LINK, problem=f"leads to {target}, which does not exist")


def _dataset(path: Path, name: str, dataset: Any) -> Entry:
    problem = ""
    try:
        if dataset.shape is not None:
            check_sources(path, dataset)
            check_external(path, dataset)
    except StorageError as error:
        problem = str(error)
    return Entry(
        name,
        DATASET,
        shape=None if dataset.shape is None else tuple(dataset.shape),
        dtype=_dtype_name(dataset),
        storage=_storage(dataset),
        attributes=_attributes(dataset),
        problem=problem,
    )


def _dtype_name(dataset: Any) -> str:
    try:
        bits, value = stored_float(dataset)
    except StorageError:
        return _other_name(dataset.dtype)
    return f"{value.name}{' (big-endian)' if bits.byteorder == '>' else ''}"


def _other_name(dtype: np.dtype) -> str:
    """The name of a type that is no supported floating-point number."""
    if h5py.check_string_dtype(dtype) is not None:
        return "string"
    if (inside := h5py.check_vlen_dtype(dtype)) is not None:
        return f"lists of {inside}"
    if dtype.names:
        return f"compound ({', '.join(dtype.names)})"
    if h5py.check_ref_dtype(dtype) is not None:
        return "reference"
    return "bytes without a type" if dtype.kind == "V" else dtype.name


def _storage(dataset: Any) -> str:
    if dataset.is_virtual:
        return f"virtual, {len({source.file_name for source in dataset.virtual_sources()})} source files"
    if dataset.external:
        return f"in {len(dataset.external)} other files"
    if not dataset.chunks:
        return ""
    creation = dataset.id.get_create_plist()
    filters = [creation.get_filter(n)[3].decode("utf-8", "replace") for n in range(creation.get_nfilters())]
    return ", ".join([f"chunks {dataset.chunks}", *filters])


def _attributes(thing: Any) -> dict[str, Any]:
    found = {}
    for name in thing.attrs:
        try:
            found[name] = json_able(thing.attrs[name])
        except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
            found[name] = f"(cannot be read: {' '.join(str(error).split())})"
    return found


def json_able(value: Any) -> Any:
    """An attribute as text, number, bool, None or a list of these; long arrays by their shape and type."""
    if isinstance(value, h5py.Empty):
        return None
    if isinstance(value, np.ndarray):
        if value.size > ELEMENTS_SHOWN:
            return f"{value.dtype} {list(value.shape)}"
        return json_able(value.tolist())
    if isinstance(value, list | tuple):
        return [json_able(each) for each in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, np.generic):
        return json_able(value.item())
    if isinstance(value, float):
        return value if np.isfinite(value) else str(value)
    return value if isinstance(value, str | int | bool | None) else str(value)
