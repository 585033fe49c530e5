"""What a run with [record] has recorded: one dataset of /record, read in pieces.

Its first axes are (batch and) heads, as those of the output. Here both are one axis: a slab is one head of one batch
entry, in C order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.errors import StorageError
from ringmpi.storage.files import storage_errors
from ringmpi.storage.hdf5_links import check_sources
from ringmpi.storage.layout_entries import DIGEST_ATTRIBUTE
from ringmpi.storage.record_layout import TOP_ROWS
from ringmpi.storage.slabs import SLAB_BYTES

NUMBERS = "if"  # kinds of dtypes
WITHOUT_HEADS = (TOP_ROWS,)


class RecordedArray:
    """A dataset [(batch,) heads, ...] of an open output, as [slabs, ...]. Nothing is read until asked for.

    Parameters
    ----------
    path : Path
        The file.
    dataset : h5py.Dataset
    leading : tuple of int
        Its first axes: those of the output, (batch,) query_heads. (): it has none.

    Attributes
    ----------
    name : str
    shape : tuple of int
        slabs, then the other axes.
    dtype : dtype

    Raises
    ------
    StorageError
        If it is no dataset of numbers, has other first axes, or lacks the file of a shard (virtual layout).
    """

    def __init__(self, path: Path, dataset: Any, leading: tuple[int, ...]) -> None:
        self.path, self.name = path, str(dataset.name)
        self._dataset, self._leading = dataset, leading
        shape, dtype = getattr(dataset, "shape", None), getattr(dataset, "dtype", None)
        if shape is None or dtype is None or dtype.kind not in NUMBERS or shape[: len(leading)] != leading:
            raise StorageError(
                f"{path}: {self.name} is {dtype or 'no dataset'} {shape or ''}; expected numbers "
                f"[{', '.join(map(str, leading))}, ...] as the output has them. It was changed; run again."
            )
        check_sources(path, dataset)
        self.dtype: np.dtype[Any] = dtype
        self.shape = (int(np.prod(leading)), *shape[len(leading) :]) if leading else tuple(shape)

    def read(self, slabs: slice, *axes: slice) -> NDArray[Any]:
        """Some slabs, and of the other axes what `axes` say: all where they say nothing.

        Returns
        -------
        array [slabs, ...], `dtype` in the byte order of this machine
        """
        chosen = range(self.shape[0])[slabs]
        with storage_errors("read", self.path, self.name):
            if len(self._leading) < 2:
                found = self._dataset[(slabs, *axes)]
            elif len(chosen) == self.shape[0]:
                found = self._dataset[(slice(None), slice(None), *axes)]
                found = found.reshape(len(chosen), *found.shape[2:])
            else:
                places = (np.unravel_index(slab, self._leading) for slab in chosen)
                found = np.stack([self._dataset[(*map(int, place), *axes)] for place in places])
        return np.asarray(found.astype(self.dtype.newbyteorder("="), copy=False))

    def text(self, attribute: str) -> str:
        """An attribute that is a text; empty where there is none."""
        with storage_errors("read", self.path, self.name):
            return str(self._dataset.attrs.get(attribute, ""))

    @property
    def recorded_digest(self) -> str:
        """The digest that the run has written; empty where there is none."""
        return self.text(DIGEST_ATTRIBUTE)

    def slabs_in_order(self, slab_bytes: int = SLAB_BYTES) -> Iterator[NDArray[Any]]:
        """All of it, little-endian, in C order: so many bytes at once, and one entry of the first axis at least."""
        entry = int(np.prod(self.shape[1:])) * self.dtype.itemsize
        step = max(slab_bytes // max(entry, 1), 1)
        for start in range(0, self.shape[0], step):
            found = self.read(slice(start, start + step))
            yield np.ascontiguousarray(found, found.dtype.newbyteorder("<"))

    def number(self, attribute: str) -> int | None:
        """An attribute that is a whole number; None where there is none."""
        with storage_errors("read", self.path, self.name):
            value = self._dataset.attrs.get(attribute)
            return None if value is None else int(value)
