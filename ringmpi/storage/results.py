"""An output file, opened to be judged or shown."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ringmpi.errors import StorageError
from ringmpi.storage.files import open_file, storage_errors
from ringmpi.storage.hdf5_links import check_sources
from ringmpi.storage.layout import (
    ATTRIBUTES,
    DATASETS,
    LOG_SUM_EXP,
    OUTPUT,
    SCHEMA,
    SCHEMA_ATTRIBUTE,
    SCHEMA_VERSION,
    VERSION_ATTRIBUTE,
)
from ringmpi.storage.provenance import read_record, read_shards
from ringmpi.storage.records import RunRecord
from ringmpi.storage.source import ArraySource


class Results:
    """An output file of `merge_shards`, open for reading while in a `with` block.

    Parameters
    ----------
    path : path

    Attributes
    ----------
    output : ArraySource
        [(batch,) query_heads, query_length, value_dim]; `rows(positions)` reads some rows of all heads.
    log_sum_exp : ArraySource
        [(batch,) query_heads, query_length]; its rows are [batch, query_heads, n].
    record : RunRecord
        Provenance, timeline and pair counts.
    shards : tuple of tuple of range
        Query positions by ring position.

    Raises
    ------
    StorageError
        On entry, if the file is missing, damaged, was not written by ringmpi, or lacks a dataset, an attribute or,
        where its layout is virtual, the file of a shard.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: Any = None

    def __enter__(self) -> Self:
        """Open the file and check its layout."""
        self._file = open_file(self.path)
        try:
            with storage_errors("read", self.path):
                self._check_schema()
                for name in (OUTPUT, LOG_SUM_EXP):
                    check_sources(self.path, self._file[name])
                self.output = ArraySource(self.path, self._file[OUTPUT])
                self.log_sum_exp = ArraySource(self.path, self._file[LOG_SUM_EXP], has_dim=False)
                self._check_shapes()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()

    @cached_property
    def record(self) -> RunRecord:
        """Provenance, timeline and pair counts."""
        with storage_errors("read the provenance of", self.path):
            return read_record(self._file)

    @cached_property
    def shards(self) -> tuple[tuple[range, ...], ...]:
        """Query positions by ring position."""
        with storage_errors("read the shards of", self.path):
            return read_shards(self._file, len(self.record.provenance.hosts))

    def _check_schema(self) -> None:
        found, version = self._file.attrs.get(SCHEMA_ATTRIBUTE), self._file.attrs.get(VERSION_ATTRIBUTE)
        if found != SCHEMA:
            raise StorageError(
                f"{self.path} is no output file of ringmpi (root attribute {SCHEMA_ATTRIBUTE} is {found!r}, needed is "
                f"{SCHEMA!r}). Give the file that [output] file names."
            )
        if version != SCHEMA_VERSION:
            raise StorageError(
                f"{self.path} has layout version {version}; this ringmpi reads version {SCHEMA_VERSION}. "
                f"Use the ringmpi that wrote it."
            )
        missing = [layout.path for layout in DATASETS if layout.path not in self._file]
        missing += [
            f"{layout.path}@{layout.name}"
            for layout in ATTRIBUTES
            if layout.path in self._file and layout.name not in self._file[layout.path].attrs
        ]
        if missing:
            raise StorageError(f"{self.path} lacks {', '.join(missing)} (@: attributes). It was changed; run again.")

    def _check_shapes(self) -> None:
        if self.log_sum_exp.shape != self.output.shape[:-1]:
            raise StorageError(
                f"{self.path} has /output {self.output.shape} and /log_sum_exp {self.log_sum_exp.shape}; "
                f"needed are the same axes but the last. It was changed; run again."
            )
