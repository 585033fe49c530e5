"""One dataset of an HDF5 file as [batch, heads, length, dim], read by positions in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.content import Content, content_of
from ringmpi.errors import ShapeError, StorageError
from ringmpi.storage.bits import Bits, read_bits, stored_float, stored_number
from ringmpi.storage.files import storage_errors
from ringmpi.storage.layout import DIGEST_ATTRIBUTE, has_dim
from ringmpi.storage.slabs import (
    SLAB_BYTES,
    Axes,
    RowMap,
    Slab,
    as_slice,
    clipped,
    cuts,
    joined,
    rows_within,
    slab_extent,
    slabs,
)

GAP_BYTES = 64 << 10  # reading this much costs no more than another read


class ArraySource:
    """An array in a file. Nothing is read until asked for, and never all of it.

    Made by `Inputs.array` and `Results`; usable while they are open. may_be_positions: int64 is taken too.

    Attributes
    ----------
    path : Path
        The file.
    name : str
        Of the dataset.
    shape : tuple of int
        As stored: [(batch,) heads, length, dim], or [(batch,) heads, length] where `has_dim` is False.
    dtype : dtype
        Of the values in memory: native, bfloat16 as `ml_dtypes.bfloat16`.
    bits : dtype
        Unsigned integer as wide, native.
    ndim : int
    length : int
        Positions.
    full_shape : tuple of 4 int
        batch, heads, length, dim; 1 for an axis that is not stored.
    """

    def __init__(self, path: Path, dataset: Any, *, has_dim: bool = True, may_be_positions: bool = False) -> None:
        self.path, self.name, self.has_dim = path, str(dataset.name), has_dim
        self.shape: tuple[int, ...] = tuple(dataset.shape or ())
        self.ndim = len(self.shape)
        self._dataset = dataset
        self._bits, self.dtype = (stored_number if may_be_positions else stored_float)(dataset)
        self.bits = np.dtype(f"u{self.dtype.itemsize}")
        if self.ndim not in (2 + has_dim, 3 + has_dim):
            needed = "[(batch,) heads, length" + (", dim]" if has_dim else "]")
            raise StorageError(
                f"dataset {self.name} of {path} has {self.ndim} axes {self.shape}; expected {needed}. "
                f"Store it with these axes, or name another dataset."
            )
        self._axes = Axes(has_batch=self.ndim == 3 + has_dim, has_dim=has_dim)
        self.full_shape = self._axes.full(self.shape)
        self.length = self.full_shape[2]

    def read(self, ranges: Sequence[range], out: NDArray[Any], *, slab_bytes: int = SLAB_BYTES) -> None:
        """Fill `out` with the rows at the positions of `ranges`, in this order.

        The file is read in contiguous slabs; of a range with a stride the rows are picked in memory.

        Parameters
        ----------
        ranges : sequence of range
            Ascending positions.
        out : array [batch, heads, positions, dim] (no dim where `has_dim` is False)
            Of `dtype`. Any strides.
        slab_bytes : int
            Bound on the memory of one slab, bytes. A single row is never cut.

        Raises
        ------
        ShapeError
            If `out` does not fit, or a position is outside the dataset.
        StorageError
            If the file cannot be read.
        """
        self._check_read(ranges, out)
        self.place_rows(rows_within(ranges, slice(0, self.length)), out, slab_bytes=slab_bytes)

    def place_rows(self, maps: Sequence[RowMap], out: NDArray[Any], *, slab_bytes: int = SLAB_BYTES) -> None:
        """Read some rows of the dataset, each to its place in `out`; other rows of `out` are not touched.

        Parameters
        ----------
        maps : sequence of RowMap
            Rows of the dataset, and the rows of `out` where they go.
        out : array [batch, heads, n, dim] (no dim where `has_dim` is False)
            Of `dtype`. Any strides.
        slab_bytes : int
            Bound on the memory of one slab, bytes. A single row is never cut.

        Raises
        ------
        StorageError
            If the file cannot be read.
        """
        bits = (out if self._axes.has_dim else out[..., None]).view(self.bits)
        for part, lead in self._pieces(maps, slab_bytes):
            self.copy_rows(part, bits[lead], lead, gap=self._gap())

    def add_rows(self, maps: Sequence[RowMap], out: NDArray[Any], *, slab_bytes: int = SLAB_BYTES) -> None:
        """Add rows of the dataset to rows of `out`.

        Parameters
        ----------
        maps : sequence of RowMap
            Rows of the dataset, and the rows of `out` to which they are added.
        out : array [batch, heads, n, dim] (no dim where `has_dim` is False)
            Of `dtype`. Any strides.
        slab_bytes : int
            Bound on the memory of one slab, bytes. A single row is never cut.

        Raises
        ------
        StorageError
            If the file cannot be read.
        """
        sums = out if self._axes.has_dim else out[..., None]
        for part, lead in self._pieces(maps, slab_bytes):
            for target, bits in self._row_boxes(part, lead, self._gap()):
                sums[(*lead, as_slice(target))] += bits.astype(self.bits, copy=False).view(self.dtype)

    def _pieces(self, maps: Sequence[RowMap], slab_bytes: int) -> Iterator[tuple[list[RowMap], tuple[slice, slice]]]:
        """`maps` cut such that one slab holds what is read at once; for which batch entries and heads."""
        batch_step, heads_step, rows_step = self._extent(slab_bytes, self._unit())
        batch, heads = (range(n) for n in self.full_shape[:2])
        for rows in cuts(_span(source for source, _ in maps), rows_step):
            if part := clipped(maps, rows):
                for lead in product(cuts(batch, batch_step), cuts(heads, heads_step)):
                    yield part, lead

    def _check_read(self, ranges: Sequence[range], out: NDArray[Any]) -> None:
        for positions in ranges:
            if positions.step < 1 or (positions and not 0 <= positions.start <= positions[-1] < self.length):
                raise ShapeError(
                    f"{positions} of dataset {self.name} of {self.path}: positions must ascend and lie in "
                    f"0 to {self.length - 1}."
                )
        batch, heads, _, dim = self.full_shape
        needed = (batch, heads, sum(map(len, ranges)), dim)[: 4 if self.has_dim else 3]
        if out.shape != needed or out.dtype != self.dtype:
            raise ShapeError(
                f"the array to read dataset {self.name} of {self.path} into is {out.shape} {out.dtype}; "
                f"expected {needed} {self.dtype}."
            )

    def rows(self, positions: Any) -> NDArray[Any]:
        """The rows at `positions`, in this order; only these are read.

        Parameters
        ----------
        positions : int array [n]
            In any order, repeats allowed.

        Returns
        -------
        array [batch, heads, n, dim] (no dim where `has_dim` is False), `dtype`
        """
        distinct, where = np.unique(np.asarray(positions, np.int64), return_inverse=True)
        stretches = np.split(distinct, np.flatnonzero(np.diff(distinct) != 1) + 1)
        ranges = [range(int(one[0]), int(one[-1]) + 1) for one in stretches if len(one)]
        batch, heads, _, dim = self.full_shape
        out = np.empty((batch, heads, len(distinct), dim)[: 4 if self.has_dim else 3], self.dtype)
        self.read(ranges, out)
        return out[:, :, where]

    def copy_rows(self, maps: Iterable[RowMap], out: Bits, lead: tuple[slice, slice], *, gap: int = 0) -> None:
        """Copy the raw bits of some rows.

        Parameters
        ----------
        maps : iterable of RowMap
            Rows of the dataset, and the rows of `out` where they go.
        out : unsigned array [batch, heads, n, dim]
        lead : tuple of slice
            Batch entries and heads of the dataset that `out` stands for.
        gap : int
            Rows no further apart than this are read at once, with those between.
        """
        for target, bits in self._row_boxes(maps, lead, gap):
            out[:, :, as_slice(target)] = bits

    def _row_boxes(self, maps: Iterable[RowMap], lead: tuple[slice, slice], gap: int) -> Iterator[tuple[range, Bits]]:
        """The rows where some go, and their bits in the byte order of the file."""
        for group in joined(maps, gap):
            rows = slice(group[0][0].start, max(source[-1] for source, _ in group) + 1)
            box = self._read_slab(Slab(*lead, rows))
            for source, target in group:
                yield target, box[:, :, as_slice(source, rows.start)]

    def rows_touched(self, ranges: Sequence[range]) -> int:
        """How many rows are read, and inflated, for the rows of `ranges`: those between them and whole boxes too."""
        unit = self._unit()[2]
        groups = joined(rows_within(ranges, slice(0, self.length)), self._gap())
        edges = ((group[0][0].start, max(rows[-1] for rows, _ in group) + 1) for group in groups)
        return sum(min(-(-stop // unit) * unit, self.length) - start // unit * unit for start, stop in edges)

    def boxes(self, parts: int, slab_bytes: int = SLAB_BYTES) -> list[Slab]:
        """The dataset cut such that every stored box lies in one slab, in `parts` slabs or more where it can be."""
        unit = self._unit()
        unit_bytes = self._row_bytes() * int(np.prod(unit))
        whole = self._row_bytes() * int(np.prod(self.full_shape[:3]))
        return list(slabs(self.full_shape, self._extent(min(slab_bytes, max(unit_bytes, whole // parts)), unit)))

    def read_slab(self, slab: Slab) -> Bits:
        """The bits of a slab [batch, heads, rows, dim], native."""
        return self._read_slab(slab).astype(self.bits, copy=False)

    def content(self, slab_bytes: int = SLAB_BYTES) -> Content:
        """NaN, infinities and checksum of all that the dataset holds now."""
        total = Content()
        batch, heads, length, dim = self.full_shape
        for rows in cuts(
            range(length),
            slab_extent((1, 1, length), self._row_bytes() * batch * heads, slab_bytes, (1, 1, self._unit()[2]))[2],
        ):
            numbers = np.empty((batch, heads, rows.stop - rows.start, dim), self.dtype)
            positions = [range(rows.start, rows.stop)]
            self.read(positions, numbers if self.has_dim else numbers[..., 0], slab_bytes=slab_bytes)
            total += content_of(numbers, positions, length)
        return total

    def _read_slab(self, slab: Slab) -> Bits:
        """Read the raw bits of a slab [batch, heads, rows, dim], in the byte order of the file."""
        start, count = slab.box(self.full_shape[3])
        with storage_errors("read", self.path, self.name):
            bits = read_bits(self._dataset, self._axes.stored(start), self._axes.stored(count), self._bits)
        return bits.reshape(count)

    def slabs_in_order(self, slab_bytes: int = SLAB_BYTES) -> Iterator[Bits]:
        """The whole dataset as little-endian bits, slab by slab, in C order."""
        for slab in slabs(self.full_shape, self._extent(slab_bytes, (1, 1, 1))):
            yield self._read_slab(slab).astype(self._bits.newbyteorder("<"), copy=False)

    def _unit(self) -> tuple[int, ...]:
        """Batch entries, heads and rows of the boxes in which HDF5 stores the dataset."""
        return self._axes.full(self._dataset.chunks)[:3] if self._dataset.chunks else (1, 1, 1)

    def _gap(self) -> int:
        """Rows that may lie unused between two that are read at once."""
        return max(self._unit()[2], GAP_BYTES // self._row_bytes())

    def _row_bytes(self) -> int:
        return max(1, self.full_shape[3]) * self.dtype.itemsize

    def _extent(self, slab_bytes: int, unit: tuple[int, ...]) -> tuple[int, ...]:
        return slab_extent(self.full_shape, self._row_bytes(), slab_bytes, unit)

    @property
    def recorded_digest(self) -> str | None:
        """The digest that was written with the dataset (layout.py); None where there is none."""
        recorded = self._dataset.attrs.get(DIGEST_ATTRIBUTE)
        return None if recorded is None else str(recorded)


def result_source(path: Path, dataset: Any) -> ArraySource:
    """An array that a run has computed, as the layout has it by its name."""
    return ArraySource(path, dataset, has_dim=has_dim(str(dataset.name)), may_be_positions=True)


def _span(ranges: Iterable[range]) -> range:
    """From the first to the last of all positions."""
    held = [positions for positions in ranges if positions]
    return range(min((r.start for r in held), default=0), max((r[-1] + 1 for r in held), default=0))
