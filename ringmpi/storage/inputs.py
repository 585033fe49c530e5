"""The input of a run: q, k, v and small vectors, looked up by their names in an HDF5 file or what stands for one."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from ringmpi.errors import StorageError
from ringmpi.storage.files import open_file, storage_errors
from ringmpi.storage.foreign import NPY, NPZ, ForeignArray, NumpyArchive, NumpyFiles, ZarrStore, is_zarr, numpy_files
from ringmpi.storage.hdf5_links import check_external, check_sources, dangling
from ringmpi.storage.source import ArraySource

NAMES_SHOWN = 12


def file_identity(path: str | Path) -> dict[str, str | int]:
    """What tells a file from another or a changed one.

    Returns
    -------
    dict
        path : absolute path; size_bytes : int; mtime_ns : time of the last change, ns since 1970. Of a directory: the
        sum and the latest of its .npy files, or of all files of a Zarr store.

    Raises
    ------
    StorageError
        If the file is missing.
    """
    path = Path(path).absolute()
    with storage_errors("open", path):
        files = [path]
        if path.is_dir():
            files = [file for file in path.rglob("*") if file.is_file()] if is_zarr(path) else numpy_files(path)
        states = [file.stat() for file in files]
    sizes, times = (state.st_size for state in states), (state.st_mtime_ns for state in states)
    return {"path": str(path), "size_bytes": sum(sizes), "mtime_ns": max(times, default=0)}


class Inputs:
    """Named arrays, open for reading while in a `with` block.

    An HDF5 file; an .npz file of numpy.savez; a directory of .npy files, which are named "q.npy"; a Zarr store.

    Parameters
    ----------
    path : path

    Raises
    ------
    StorageError
        On entry, if there is no such file, or it is truncated or none of these.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: Any = None

    def __enter__(self) -> Self:
        """Open the file."""
        self._file = _open(self.path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()

    def identity(self) -> dict[str, str | int]:
        """`file_identity` of this file."""
        return file_identity(self.path)

    def names(self) -> list[str]:
        """Paths of all datasets in the file."""
        found: list[str] = []
        with storage_errors("list", self.path):
            if not isinstance(self._file, h5py.File):
                return list(self._file.names())
            self._file.visititems(lambda name, entry: found.append(name) if isinstance(entry, h5py.Dataset) else None)
        return found

    def array(self, name: str, *, has_dim: bool = True) -> ArraySource:
        """The floating-point dataset `name`, [(batch,) heads, length, dim], or without dim.

        Raises
        ------
        StorageError
            If there is none (the message lists what there is), or if it holds no floating-point numbers.
        """
        dataset = self._dataset(name)
        with storage_errors("read", self.path, name):
            source = ArraySource(self.path, dataset, has_dim=has_dim)
            if isinstance(dataset, h5py.Dataset):
                check_sources(self.path, dataset)
                check_external(self.path, dataset)
            return source

    def read_vector(self, name: str) -> NDArray[Any]:
        """A small dataset with one or two axes: document lengths, slices, slopes.

        Returns
        -------
        array
            int64 for integers, float64 for floating-point numbers.

        Raises
        ------
        StorageError
            If there is no such dataset, or if it holds anything else.
        """
        dataset = self._dataset(name)
        with storage_errors("read", self.path, name):
            if dataset.dtype.kind not in "iuf" or len(dataset.shape or ()) not in (1, 2):
                raise StorageError(
                    f"dataset {name} of {self.path} is {dataset.dtype} {dataset.shape}; expected integers or "
                    f"floating-point numbers with one or two axes. Name another dataset."
                )
            numbers = dataset[...]
        if numbers.dtype.kind == "u" and numbers.size and int(numbers.max()) > np.iinfo(np.int64).max:
            raise StorageError(f"dataset {name} of {self.path} has {numbers.max()}; expected at most 2^63 - 1.")
        return np.asarray(numbers, np.float64 if numbers.dtype.kind == "f" else np.int64)

    def _dataset(self, name: str) -> Any:
        """The dataset at a path; StorageError lists the nearest name and what there is."""
        with storage_errors("read", self.path, name):
            entry = self._file.get(name) if name.strip("/") else None
            link = dangling(self._file, name) if entry is None else None
        if isinstance(entry, h5py.Dataset | ForeignArray):
            return entry
        if link:
            raise StorageError(
                f"{self.path} has {name!r} as a link to {link}, which does not exist. Fix the link, or put "
                f"its target back."
            )
        names = self.names()
        alike = [known for known in names if known.lower().split(".")[0] == name.strip("/").lower().split(".")[0]]
        nearest = alike or get_close_matches(name.strip("/"), names, n=1, cutoff=0.5)
        hint = f" Did you mean {nearest[0]}?" if nearest else ""
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        raise StorageError(
            f"{self.path} has {'a group, not a dataset,' if entry is not None else 'no dataset'} {name!r}.{hint} "
            f"Datasets in it: {', '.join(names[:NAMES_SHOWN]) or 'none'}{more}."
        )


def _open(path: Path) -> Any:
    """An h5py.File, or what has `names`, `get` and `close` in its place."""
    if path.is_dir():
        return _open_directory(path)
    if path.suffix == NPZ:
        with storage_errors("open", path):
            return NumpyArchive(path)
    if path.suffix == NPY and path.exists():
        raise StorageError(
            f"input {path} is a single array; expected a file or directory that holds query, key and value by name. "
            f'Give the directory of the .npy files instead, and name them: query = "{path.name}".'
        )
    return open_file(path)


def _open_directory(path: Path) -> Any:
    with storage_errors("open", path):
        if is_zarr(path):
            return ZarrStore(path)
        if numpy_files(path):
            return NumpyFiles(path)
    raise StorageError(
        f"input {path} is a directory with neither .npy files nor a Zarr store. Give the path of a file, or of the "
        f"directory that holds them."
    )
