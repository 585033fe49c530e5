"""The file in which one rank leaves its rows, until one rank merges all of them (storage/merge.py)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.errors import ShapeError, StorageError
from ringmpi.storage.bits import store_floats
from ringmpi.storage.files import TEMPORARY_SUFFIX, open_file, replacing, storage_errors
from ringmpi.storage.layout import (
    GRAD_KEY,
    GRAD_QUERY,
    GRAD_VALUE,
    GRADIENTS,
    KEY_SHARDS,
    KEY_SIDE,
    LOG_SUM_EXP,
    OUTPUT,
    RESULTS,
    SCHEMA_ATTRIBUTE,
    SCHEMA_VERSION,
    SHARD_SCHEMA,
    SHARDS,
    VERSION_ATTRIBUTE,
)
from ringmpi.storage.record_layout import RECORD, RECORDED_ROWS
from ringmpi.storage.slabs import range_table, ranges_of
from ringmpi.storage.source import ArraySource, result_source

DIGITS = 5


@dataclass(frozen=True)
class ShardArray:
    """An array of which a shard file holds some rows.

    Attributes
    ----------
    ranges : tuple of range
        Positions of its rows, in order.
    shape : tuple of 4 int
        batch, heads, rows, dim; dim is 1 for what is one number per row.
    dtype : dtype
    """

    ranges: tuple[range, ...]
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(frozen=True)
class ShardFile:
    """What a shard file says of itself: the arrays in it, by name."""

    path: Path
    arrays: dict[str, ShardArray]


@dataclass(frozen=True)
class ShardGradients:
    """The gradients of one rank, in the dtype of the output.

    query       [batch, query_heads, n, head_dim]: of its n queries
    key, value  [batch, key_heads, m, head_dim], [batch, key_heads, m, value_dim]: of its m keys
    key_ranges  global positions of these keys, in order
    """

    query: NDArray[Any]
    key: NDArray[Any]
    value: NDArray[Any]
    key_ranges: Sequence[range]


def shard_path(destination: str | Path, rank: int) -> Path:
    """Where the rank at ring position `rank` leaves its shard file: beside the destination."""
    destination = Path(destination)
    return destination.with_name(f"{destination.name}.shard-{rank:0{DIGITS}d}")


def remove_shards(destination: str | Path) -> None:
    """Remove what a killed run left beside `destination`: its shard files and temporary files.

    Raises
    ------
    StorageError
        If one cannot be removed.
    """
    destination = Path(destination)
    left = re.compile(re.escape(destination.name) + rf"(\.shard-\d{{{DIGITS},}})?({re.escape(TEMPORARY_SUFFIX)})?")
    with storage_errors("clear the directory of", destination):
        for path in list(destination.parent.iterdir()):
            if path.name != destination.name and left.fullmatch(path.name):
                path.unlink()


def write_shard(
    path: str | Path,
    *,
    ranges: Sequence[range],
    output: NDArray[Any],
    log_sum_exp: NDArray[Any],
    gradients: ShardGradients | None = None,
    record: Mapping[str, NDArray[Any]] | None = None,
) -> None:
    """Write the rows of one rank to its shard file, whole or not at all. An older file at `path` is removed first.

    Parameters
    ----------
    path : path
        `shard_path` of the destination.
    ranges : sequence of range
        Global positions of the rows, in order.
    output : array [batch, query_heads, n, value_dim]
        float16, bfloat16, float32 or float64. Any strides and byte order.
    log_sum_exp : array [batch, query_heads, n]
        float32 or float64, natural logarithm.
    gradients : ShardGradients, optional
        Where the run made them.
    record : mapping, optional
        Where rows are recorded: `RECORDED_ROWS` by name, arrays like log_sum_exp, that of /record/top_key int64.

    Raises
    ------
    ShapeError
        If arrays and ranges do not fit together.
    StorageError
        If the file cannot be written.
    """
    path = Path(path)
    rows = {LOG_SUM_EXP: log_sum_exp, **(record or {})}
    _check_rows(path, ranges, output, rows)
    arrays = {OUTPUT: output, LOG_SUM_EXP: log_sum_exp}
    tables = {SHARDS: ranges}
    if gradients is not None:
        _check_gradients(path, output, gradients)
        arrays |= {GRAD_QUERY: gradients.query, GRAD_KEY: gradients.key, GRAD_VALUE: gradients.value}
        tables[KEY_SHARDS] = gradients.key_ranges
    arrays |= rows
    with storage_errors("remove", path):
        path.unlink(missing_ok=True)
    with replacing(path) as file:
        file.attrs.update({SCHEMA_ATTRIBUTE: SHARD_SCHEMA, VERSION_ATTRIBUTE: SCHEMA_VERSION})
        for name, held in tables.items():
            file[name] = range_table(held)
        for name, array in arrays.items():
            store_floats(file, name, array)


def _check_rows(path: Path, ranges: Sequence[range], output: NDArray[Any], rows: Mapping[str, NDArray[Any]]) -> None:
    n = sum(map(len, ranges))
    for name, array in rows.items():
        if output.ndim != 4 or array.shape != output.shape[:3] or output.shape[2] != n:
            raise ShapeError(
                f"shard {path}: output {output.shape}, {name.strip('/')} {array.shape} and {n} positions do not fit; "
                f"expected [batch, heads, n, value_dim], [batch, heads, n] and n positions."
            )


def _check_gradients(path: Path, output: NDArray[Any], gradients: ShardGradients) -> None:
    m = sum(map(len, gradients.key_ranges))
    query, key, value = gradients.query.shape, gradients.key.shape, gradients.value.shape
    if query[:3] != output.shape[:3] or (*key[:3], query[3], output.shape[3]) != (*value[:2], m, key[3], value[3]):
        raise ShapeError(
            f"shard {path}: output {output.shape}, gradients {query}, {key}, {value} and {m} key positions do not "
            f"fit; expected the rows of the output, and m rows of key and value."
        )


def open_shard(path: str | Path) -> ShardFile:
    """What a shard file holds; StorageError if it is missing, damaged, or no shard file."""
    path = Path(path)
    with open_file(path) as file, storage_errors("read", path):
        if file.attrs.get(SCHEMA_ATTRIBUTE) != SHARD_SCHEMA or file.attrs.get(VERSION_ATTRIBUTE) != SCHEMA_VERSION:
            raise StorageError(
                f"{path} is not a shard file of layout version {SCHEMA_VERSION}. Remove it and run again."
            )
        names = (*RESULTS, *(GRADIENTS if KEY_SHARDS in file else ()), *(RECORDED_ROWS if RECORD in file else ()))
        tables = {name: ranges_of(file[name][...]) for name in (SHARDS, KEY_SHARDS) if name in file}
        arrays = {name: _shard_array(result_source(path, file[name]), tables) for name in names}
    for name, held in arrays.items():
        first = arrays[GRAD_KEY if name in KEY_SIDE else OUTPUT]
        if held.shape[:3] != first.shape[:3] or sum(map(len, held.ranges)) != held.shape[2]:
            raise StorageError(f"{path} is damaged: its arrays and positions differ in length. Run again.")
    return ShardFile(path, arrays)


def _shard_array(source: ArraySource, tables: dict[str, tuple[range, ...]]) -> ShardArray:
    return ShardArray(tables[KEY_SHARDS if source.name in KEY_SIDE else SHARDS], source.full_shape, source.dtype)
