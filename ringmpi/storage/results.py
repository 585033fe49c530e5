"""An output file, opened to be judged or shown."""

from __future__ import annotations

from collections.abc import Container
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ringmpi.errors import StorageError
from ringmpi.storage.account import Account
from ringmpi.storage.computed_by import COMPUTED_BY, COMPUTED_BY_ATTRIBUTES, COMPUTED_BY_DATASETS
from ringmpi.storage.files import open_file, storage_errors
from ringmpi.storage.hdf5_links import check_sources
from ringmpi.storage.layout import (
    ATTEMPTS,
    ATTEMPTS_ATTRIBUTES,
    ATTEMPTS_DATASETS,
    ATTRIBUTES,
    BACKWARD_TIMELINE,
    DATASETS,
    GRAD_KEY,
    GRADIENT_ATTRIBUTES,
    GRADIENT_DATASETS,
    GRADIENTS,
    KEY_SHARDS,
    LOG_SUM_EXP,
    OUTPUT,
    PLACEMENT,
    PLACEMENT_ATTRIBUTES,
    PLACEMENT_DATASETS,
    RESULTS,
    SCHEMA,
    SCHEMA_ATTRIBUTE,
    SCHEMA_VERSION,
    SHARDS,
    VERSION_ATTRIBUTE,
    AttributeLayout,
    DatasetLayout,
    result_shapes,
)
from ringmpi.storage.map_layout import MAP_TIMELINE, MAP_TIMELINE_ATTRIBUTES, MAP_TIMELINE_DATASETS
from ringmpi.storage.provenance import read_account, read_shards
from ringmpi.storage.record_check import check_record
from ringmpi.storage.record_layout import LATE_OF_HEADS, RECORD_GROUPS, RECORDED_ROWS, TOP_ROWS
from ringmpi.storage.recorded import WITHOUT_HEADS, RecordedArray
from ringmpi.storage.source import ArraySource, result_source


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
    account : Account
        Provenance, timeline and pair counts.
    shards, key_shards : tuple of tuple of range
        Query and key positions by ring position; of keys where there are gradients.
    recorded_rows : dict
        Of a run with [record], the arrays of /record that follow the rows of /output, by name; else empty.
    late : dict
        What was recorded after the forward pass, with an axis of heads: the map, what keys receive, top keys and their
        weights, by name, as far as they are there.
    top_rows : RecordedArray or None
        Positions of the queries whose top keys are recorded, int64 [rows]; None: of none.
    gradients : dict
        Of a run with [backward], the arrays /grad_query, /grad_key and /grad_value by name; else empty.

    Raises
    ------
    StorageError
        On entry, if the file is missing, damaged, was not written by ringmpi, or lacks a dataset, an attribute or,
        where its layout is virtual, the file of a shard; or if what it says of its record does not fit.
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
                has_gradients = is_with_gradients(self._file)
                self.output, self.log_sum_exp = (self._source(name) for name in RESULTS)
                self.gradients = {name: self._source(name) for name in GRADIENTS if has_gradients}
                self.recorded_rows = {name: self._source(name) for name in RECORDED_ROWS if name in self._file}
                self.late = {name: self._source(name) for name in LATE_OF_HEADS if name in self._file}
                self.top_rows = self.recorded_array(TOP_ROWS)
                self._check_shapes()
                keys = self.gradients[GRAD_KEY].length if has_gradients else None
                check_record(self.path, self._file, self.output.shape, keys)
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
    def account(self) -> Account:
        """Provenance, timeline and pair counts."""
        with storage_errors("read the provenance of", self.path):
            return read_account(self._file)

    @cached_property
    def shards(self) -> tuple[tuple[range, ...], ...]:
        """Query positions by ring position."""
        with storage_errors("read the shards of", self.path):
            return read_shards(self._file, SHARDS, len(self.account.provenance.hosts))

    @cached_property
    def key_shards(self) -> tuple[tuple[range, ...], ...]:
        """Key positions by ring position, of a run with gradients."""
        with storage_errors("read the key shards of", self.path):
            return read_shards(self._file, KEY_SHARDS, len(self.account.provenance.hosts))

    def recorded_array(self, path: str) -> RecordedArray | None:
        """The dataset at a path such as /record/map; None where the run has not recorded it."""
        with storage_errors("read", self.path, path):
            if path not in self._file:
                return None
            leading = () if path in WITHOUT_HEADS else self.output.shape[:-2]
            return RecordedArray(self.path, self._file[path], leading)

    @property
    def arrays(self) -> list[ArraySource | RecordedArray]:
        """All that the run computed."""
        rows = [self.output, self.log_sum_exp, *self.gradients.values(), *self.recorded_rows.values()]
        return [*rows, *self.late.values(), *([] if self.top_rows is None else [self.top_rows])]

    @property
    def parts(self) -> list[Path]:
        """The files beside it in which its arrays lie, where its layout is virtual."""
        arrays = [self._file[array.name] for array in self.arrays]
        names = {source.file_name for array in arrays if array.is_virtual for source in array.virtual_sources()}
        return [self.path.with_name(Path(name).name) for name in names]

    def _source(self, name: str) -> ArraySource:
        check_sources(self.path, self._file[name])
        return result_source(self.path, self._file[name])

    def _check_schema(self) -> None:
        found, version = self._file.attrs.get(SCHEMA_ATTRIBUTE), self._file.attrs.get(VERSION_ATTRIBUTE)
        if found != SCHEMA:
            raise StorageError(
                f"{self.path} is not a ringmpi output file (root attribute {SCHEMA_ATTRIBUTE} is {found!r}, expected "
                f"{SCHEMA!r}). Give the file that [output] file names."
            )
        if version != SCHEMA_VERSION:
            raise StorageError(
                f"{self.path} has layout version {version}; this ringmpi reads version {SCHEMA_VERSION}. "
                f"Use the ringmpi that wrote it."
            )
        datasets, attributes = layouts_of(self._file)
        missing = [layout.path for layout in datasets if layout.path not in self._file]
        missing += [
            f"{layout.path}@{layout.name}"
            for layout in attributes
            if layout.path in self._file and layout.name not in self._file[layout.path].attrs
        ]
        if missing:
            raise StorageError(f"{self.path} lacks {', '.join(missing)} (@: attributes). It was changed; run again.")

    def _check_shapes(self) -> None:
        output = self.output.shape
        shapes = {name: array.shape for name, array in (self.gradients | self.recorded_rows).items()}
        needed = result_shapes(output, shapes.get(GRAD_KEY), rows=bool(self.recorded_rows))
        found = {OUTPUT: output, LOG_SUM_EXP: self.log_sum_exp.shape} | shapes
        if needed != found:
            raise StorageError(
                f"{self.path} has arrays of shapes {_text(found)}; expected {_text(needed)}. It was changed; run again."
            )


def is_with_gradients(names: Container[str]) -> bool:
    """Whether a file, or what else knows the paths in it, has anything that only a backward pass writes."""
    return any(layout.path in names for layout in GRADIENT_DATASETS) or BACKWARD_TIMELINE in names


def layouts_of(names: Container[str]) -> tuple[tuple[DatasetLayout, ...], tuple[AttributeLayout, ...]]:
    """The datasets and attributes that an output must have in which there are these paths."""
    datasets: tuple[DatasetLayout, ...] = DATASETS
    attributes: tuple[AttributeLayout, ...] = ATTRIBUTES
    for there, more_datasets, more_attributes in (
        (is_with_gradients(names), GRADIENT_DATASETS, GRADIENT_ATTRIBUTES),
        (PLACEMENT in names, PLACEMENT_DATASETS, PLACEMENT_ATTRIBUTES),
        (ATTEMPTS in names, ATTEMPTS_DATASETS, ATTEMPTS_ATTRIBUTES),
        (COMPUTED_BY in names, COMPUTED_BY_DATASETS, COMPUTED_BY_ATTRIBUTES),
        (MAP_TIMELINE in names, MAP_TIMELINE_DATASETS, MAP_TIMELINE_ATTRIBUTES),
        *((any(p in names for p in group.paths), group.datasets, group.attributes) for group in RECORD_GROUPS),
    ):
        datasets += more_datasets * there
        attributes += more_attributes * there
    return datasets, attributes


def _text(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())
