"""Arrays that lie in other files than HDF5: .npy and .npz (NumPy maps them), Zarr (its library reads them)."""

from __future__ import annotations

import importlib
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.dtypes import SUPPORTED, bfloat16, native
from ringmpi.errors import StorageError
from ringmpi.storage.layout import BFLOAT16_ATTRIBUTE

NPY, NPZ = ".npy", ".npz"
ZARR_MARKS = ("zarr.json", ".zgroup", ".zarray")  # version 3; version 2
BFLOAT16_IN_NPY = np.dtype("V2")  # what numpy.save makes of ml_dtypes.bfloat16


class ForeignArray:
    """An array that looks like a dataset of h5py, as far as reading goes.

    Attributes
    ----------
    path : Path
        The file or store.
    name : str
        Of the array in it.
    shape : tuple of int
    dtype : dtype
        As stored.
    chunks : tuple of int or None
        The boxes that are inflated whole; None: none are.
    attrs : mapping
    """

    def __init__(self, path: Path, name: str, numbers: Any) -> None:
        self.path, self.name = path, name
        self._numbers = numbers
        self.shape: tuple[int, ...] = tuple(numbers.shape)
        self.dtype = np.dtype(numbers.dtype)
        self.chunks: tuple[int, ...] | None = getattr(numbers, "shards", None) or getattr(numbers, "chunks", None)
        self.attrs: Any = getattr(numbers, "attrs", {})

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Some numbers, as `dtype`."""
        return np.asarray(self._numbers[key])

    def stored_float(self) -> tuple[np.dtype, np.dtype]:
        """As `storage.bits.stored_float`."""
        marked = native(self.dtype) == np.uint16 and self.attrs.get(BFLOAT16_ATTRIBUTE) == bfloat16.name
        if marked or self.dtype == BFLOAT16_IN_NPY:
            return np.dtype("u2"), bfloat16
        if native(self.dtype) in SUPPORTED:
            return np.dtype(f"u{self.dtype.itemsize}"), native(self.dtype)
        raise StorageError(
            f"array {self.name} of {self.path} holds {self.dtype}; expected float16, bfloat16, float32 or float64. "
            f"Convert it, or name another array."
        )

    def read_bits(self, start: tuple[int, ...], count: tuple[int, ...]) -> NDArray[np.unsignedinteger]:
        """The box of `count` elements a axis at `start`, native bits."""
        box = self[tuple(slice(first, first + n) for first, n in zip(start, count, strict=True))]
        if box.dtype != BFLOAT16_IN_NPY:
            box = box.astype(native(box.dtype), copy=False)
        return np.ascontiguousarray(box).view(f"u{box.itemsize}")


class NumpyFiles:
    """A directory of .npy files, by their names. Only files that are directly in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """Names of the files."""
        return sorted(file.name for file in numpy_files(self.path))

    def get(self, name: str) -> ForeignArray | None:
        """The array in the file `name`, mapped; None where there is no such file."""
        file = self.path / name
        if name not in self.names():
            return None
        try:
            numbers = np.load(file, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            found = str(error).split(". ")[0].rstrip(".")
            raise StorageError(
                f"cannot read {file}: {found}. Expected a complete .npy file of numbers; save it again with numpy.save."
            ) from error
        return ForeignArray(self.path, name, numbers)

    def close(self) -> None:
        """Nothing is open: maps close themselves."""


class NumpyArchive:
    """An .npz file of numpy.savez, its members mapped where they lie."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._archive = zipfile.ZipFile(path)
        except zipfile.BadZipFile as error:
            raise StorageError(f"cannot open {path}: {error}. Expected a complete .npz file of numpy.savez.") from error

    def names(self) -> list[str]:
        """Names of the arrays, as they were given to numpy.savez."""
        return [name.removesuffix(NPY) for name in self._archive.namelist()]

    def get(self, name: str) -> ForeignArray | None:
        """The array `name`; None where there is none."""
        if name.removesuffix(NPY) not in self.names():
            return None
        member = self._archive.getinfo(name.removesuffix(NPY) + NPY)
        if member.compress_type != zipfile.ZIP_STORED:
            raise StorageError(
                f"array {name} of {self.path} is compressed as a whole: no rank can read its part alone. "
                f"Save it with numpy.savez instead of numpy.savez_compressed."
            )
        with self._archive.open(member) as stored:
            version = np.lib.format.read_magic(stored)
            header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = header(stored)
            start = _data_of(self.path, member) + stored.tell()
        if dtype.hasobject:
            raise StorageError(f"array {name} of {self.path} holds Python objects; expected numbers. Convert it.")
        if 0 in shape:  # nothing to map
            return ForeignArray(self.path, name, np.empty(shape, dtype))
        order: Literal["C", "F"] = "F" if fortran else "C"
        numbers = np.memmap(self.path, dtype=dtype, mode="r", offset=start, shape=shape, order=order)
        return ForeignArray(self.path, name, numbers)

    def close(self) -> None:
        """Close the archive; maps stay open as long as they are used."""
        self._archive.close()


def _data_of(path: Path, member: zipfile.ZipInfo) -> int:
    """Where the bytes of a stored member begin: after its local header of 30 bytes, a name and an extra field."""
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)
        name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
    return member.header_offset + 30 + name + extra


class ZarrStore:
    """A Zarr group in a directory, of version 3 or 2."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            zarr = importlib.import_module("zarr")
        except ImportError:
            raise StorageError(
                f"{path} is a Zarr store, and the package zarr is missing. Install it: pip install 'zarr>=3'."
            ) from None
        self._array_type = zarr.Array
        self._group = zarr.open_group(path, mode="r")

    def names(self) -> list[str]:
        """Paths of the arrays."""
        members = self._group.members(max_depth=None)
        return sorted(name for name, entry in members if isinstance(entry, self._array_type))

    def get(self, name: str) -> ForeignArray | None:
        """The array at the path `name`; None where there is none."""
        if name.strip("/") not in self.names():
            return None
        return ForeignArray(self.path, name, self._group[name.strip("/")])

    def close(self) -> None:
        """Nothing is open."""


def numpy_files(path: Path) -> list[Path]:
    """The .npy files in a directory."""
    return [file for file in path.iterdir() if file.suffix == NPY and file.is_file()]


def is_zarr(path: Path) -> bool:
    """Whether a directory is a Zarr store."""
    return any((path / mark).exists() for mark in ZARR_MARKS)
