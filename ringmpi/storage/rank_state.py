"""What one rank has of an unfinished run, as a file: sums with the positions of their rows, and tables of integers.

    /                attributes schema = "ringmpi-state", schema_version
    /arrays/NAME     [batch, heads, rows] or [batch, heads, rows, dim]
    /positions/NAME  int64 [ranges, 3]: start, stop and step of its rows, in their order
    /tables/NAME     int64

Rows are found by their positions, so that any number of ranks, however it shards, reads what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from ringmpi.errors import ShapeError, StorageError
from ringmpi.storage.bits import store_floats
from ringmpi.storage.file_digest import Fingerprint, fingerprint
from ringmpi.storage.files import open_file, replacing, storage_errors
from ringmpi.storage.layout import SCHEMA_ATTRIBUTE, VERSION_ATTRIBUTE
from ringmpi.storage.slabs import range_table, ranges_of, shared_rows
from ringmpi.storage.source import ArraySource
from ringmpi.storage.visibility import missing

STATE_SCHEMA = "ringmpi-state"
STATE_VERSION = 1

ARRAYS, POSITIONS, TABLES = "/arrays", "/positions", "/tables"


@dataclass(frozen=True)
class StateArray:
    """An array and the positions that its axis 2 follows.

    Attributes
    ----------
    ranges : sequence of range
        Global positions of the rows, in order.
    array : [batch, heads, n] or [batch, heads, n, dim]
        float16, bfloat16, float32, float64, or int64 for positions; of any strides.
    """

    ranges: Sequence[range]
    array: NDArray[Any]


class WrittenFile(NamedTuple):
    """The name of a file in its directory, its bytes, and their digest as 64 hexadecimal digits."""

    name: str
    bytes: int
    digest: str


def write_rank_state(
    path: str | Path, arrays: Mapping[str, StateArray], tables: Mapping[str, NDArray[np.int64]]
) -> WrittenFile:
    """Write the state of one rank, whole or not at all. Its name is on the disk for good once the manifest is.

    Parameters
    ----------
    path : path
        `Checkpoints.rank_path`, in a folder that is there.
    arrays : mapping
        By name; a name may have slashes.
    tables : mapping
        int64 arrays of any shape, by name.

    Raises
    ------
    ShapeError
        If an array and its ranges do not fit together.
    StorageError
        If the file cannot be written; nothing is left of it.
    """
    path = Path(path)
    for name, held in arrays.items():
        _check_rows(name, held)
    found: list[Fingerprint] = []
    with replacing(path, finished=lambda written: found.append(fingerprint(written)), sync_directory=False) as file:
        file.attrs.update({SCHEMA_ATTRIBUTE: STATE_SCHEMA, VERSION_ATTRIBUTE: np.int64(STATE_VERSION)})
        for name, table in tables.items():
            file.create_dataset(f"{TABLES}/{name}", data=table, dtype="<i8")
        for name, held in arrays.items():
            file.create_dataset(f"{POSITIONS}/{name}", data=range_table(held.ranges), dtype="<i8")
            file.require_group(f"{ARRAYS}/{name}".rpartition("/")[0])
            store_floats(file, f"{ARRAYS}/{name}", held.array)
    return WrittenFile(path.name, *found[0])


def _check_rows(name: str, held: StateArray) -> None:
    shape, n = held.array.shape, sum(map(len, held.ranges))
    if len(shape) not in (3, 4) or shape[2] != n:
        raise ShapeError(
            f"state: {name} {shape} and {n} positions do not fit; expected [batch, heads, n] or "
            f"[batch, heads, n, dim] and n positions."
        )


class RankState:
    """The file of `write_rank_state`, open for reading while in a `with` block.

    Attributes
    ----------
    arrays : dict
        ArraySource by name.
    ranges : dict
        The positions of its rows, by the name of an array.
    tables : dict
        int64 arrays by name.

    Raises
    ------
    StorageError
        On entry, if the file is missing, damaged, or something else.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.arrays: dict[str, ArraySource] = {}
        self.ranges: dict[str, tuple[range, ...]] = {}
        self.tables: dict[str, NDArray[np.int64]] = {}

    def __enter__(self) -> Self:
        """Open the file and find what is in it."""
        with storage_errors("open", self.path):
            missing([self.path])
        self._file = open_file(self.path)
        try:
            with storage_errors("read", self.path):
                self._check_schema()
                self.tables = {name: dataset[()] for name, dataset in self._inside(TABLES).items()}
                self.ranges = {name: ranges_of(dataset[...]) for name, dataset in self._inside(POSITIONS).items()}
                for name, dataset in self._inside(ARRAYS).items():
                    self.arrays[name] = ArraySource(
                        self.path, dataset, has_dim=dataset.ndim == 4, may_be_positions=True
                    )
                self._check_lengths()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()

    def read(self, name: str, out: NDArray[Any]) -> None:
        """Fill `out`, of the shape and dtype of an array and of any strides, with all of its rows as they were written.

        Raises
        ------
        ShapeError
            If `out` does not fit.
        StorageError
            If the file cannot be read.
        """
        source = self.arrays[name]
        source.read([range(source.length)], out)

    def read_rows(self, name: str, ranges: Sequence[range], out: NDArray[Any], *, add: bool = False) -> int:
        """Read those rows of an array that lie at some positions to their places in `out`; leave the others alone.

        Parameters
        ----------
        name : str
        ranges : sequence of range
            Ascending positions of the rows of `out`, in order.
        out : array [batch, heads, n] or [batch, heads, n, dim]
            Of the dtype of the array. Any strides.
        add : bool
            Add them to what is in `out`.

        Returns
        -------
        int
            How many rows were found.

        Raises
        ------
        ShapeError
            If `out` does not fit.
        StorageError
            If the file cannot be read.
        """
        source = self.arrays[name]
        needed = (*source.shape[:2], sum(map(len, ranges)), *source.shape[3:])
        if out.shape != needed or out.dtype != source.dtype:
            raise ShapeError(
                f"the array to read {name} of {self.path} into is {out.shape} {out.dtype}; expected {needed} "
                f"{source.dtype}."
            )
        maps = list(shared_rows(self.ranges[name], ranges))
        (source.add_rows if add else source.place_rows)(maps, out)
        return sum(len(rows) for rows, _ in maps)

    def _check_schema(self) -> None:
        found, version = (self._file.attrs.get(name) for name in (SCHEMA_ATTRIBUTE, VERSION_ATTRIBUTE))
        if (found, version) != (STATE_SCHEMA, STATE_VERSION):
            raise StorageError(
                f"{self.path} is {found!r} of version {version}; expected {STATE_SCHEMA!r} of version "
                f"{STATE_VERSION}. Use the ringmpi that wrote it, or start over with --force."
            )

    def _inside(self, group: str) -> dict[str, Any]:
        """All datasets of a group, by their path in it."""
        found: dict[str, Any] = {}

        def note(name: str, thing: Any) -> None:
            if isinstance(thing, h5py.Dataset):
                found[name] = thing

        if group in self._file:
            self._file[group].visititems(note)
        return found

    def _check_lengths(self) -> None:
        for name, source in self.arrays.items():
            if source.length != sum(map(len, self.ranges[name])):
                raise StorageError(f"{self.path} is damaged: {name} and its positions differ in length.")
