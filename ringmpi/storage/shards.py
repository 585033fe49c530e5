"""The file in which one rank leaves its rows, until one rank merges all of them (storage/merge.py)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.dtypes import check_dtype
from ringmpi.errors import ShapeError, StorageError
from ringmpi.storage.bits import bits_dtype, create_floats, write_bits
from ringmpi.storage.files import TEMPORARY_SUFFIX, open_file, replacing, storage_errors
from ringmpi.storage.layout import (
    LOG_SUM_EXP,
    OUTPUT,
    SCHEMA_ATTRIBUTE,
    SCHEMA_VERSION,
    SHARD_SCHEMA,
    SHARDS,
    VERSION_ATTRIBUTE,
)
from ringmpi.storage.slabs import SLAB_BYTES, slab_extent, slabs
from ringmpi.storage.source import ArraySource

DIGITS = 5


@dataclass(frozen=True)
class ShardFile:
    """What a shard file says of itself.

    Attributes
    ----------
    path : Path
    ranges : tuple of range
        Positions of its rows, in order.
    shape : tuple of 4 int
        batch, heads, rows, value_dim of its output.
    dtype, log_sum_exp_dtype : dtype
    """

    path: Path
    ranges: tuple[range, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    log_sum_exp_dtype: np.dtype


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


def write_shard(path: str | Path, *, ranges: Sequence[range], output: NDArray[Any], log_sum_exp: NDArray[Any]) -> None:
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

    Raises
    ------
    ShapeError
        If arrays and ranges do not fit together.
    StorageError
        If the file cannot be written.
    """
    path = Path(path)
    n = sum(map(len, ranges))
    if output.ndim != 4 or log_sum_exp.shape != output.shape[:3] or output.shape[2] != n:
        raise ShapeError(
            f"shard {path}: output {output.shape}, log_sum_exp {log_sum_exp.shape} and {n} positions do not fit; "
            f"needed are [batch, heads, n, value_dim], [batch, heads, n] and n positions."
        )
    with storage_errors("remove", path):
        path.unlink(missing_ok=True)
    with replacing(path) as file:
        file.attrs.update({SCHEMA_ATTRIBUTE: SHARD_SCHEMA, VERSION_ATTRIBUTE: SCHEMA_VERSION})
        file[SHARDS] = np.array([(r.start, r.stop, r.step) for r in ranges], np.int64).reshape(-1, 3)
        for name, array in ((OUTPUT, output), (LOG_SUM_EXP, log_sum_exp)):
            _write_array(file, name, array)


def _write_array(file: Any, name: str, array: NDArray[Any]) -> None:
    dtype = check_dtype(name, array.dtype)
    dataset = create_floats(file, name, array.shape, dtype)
    bits = array.astype(dtype, copy=False).view(f"u{dtype.itemsize}")
    full = bits if bits.ndim == 4 else bits[..., None]
    extent = slab_extent(full.shape, max(1, full.shape[3]) * dtype.itemsize, SLAB_BYTES, (1, 1, 1))
    for slab in slabs(full.shape, extent):
        box = np.ascontiguousarray(full[slab.batch, slab.heads, slab.rows], bits_dtype(dtype))
        start, count = slab.box(full.shape[3])
        write_bits(dataset, start[: bits.ndim], box.reshape(count[: bits.ndim]))


def open_shard(path: str | Path) -> ShardFile:
    """What a shard file holds; StorageError if it is missing, damaged, or no shard file."""
    path = Path(path)
    with open_file(path) as file, storage_errors("read", path):
        if file.attrs.get(SCHEMA_ATTRIBUTE) != SHARD_SCHEMA or file.attrs.get(VERSION_ATTRIBUTE) != SCHEMA_VERSION:
            raise StorageError(f"{path} is no shard file of layout version {SCHEMA_VERSION}. Remove it and run again.")
        output = ArraySource(path, file[OUTPUT])
        log_sum_exp = ArraySource(path, file[LOG_SUM_EXP], has_dim=False)
        ranges = tuple(range(*map(int, row)) for row in file[SHARDS][...])
    if log_sum_exp.full_shape[:3] != output.full_shape[:3] or sum(map(len, ranges)) != output.length:
        raise StorageError(f"{path} is damaged: its arrays and positions differ in length. Run again.")
    return ShardFile(path, ranges, output.full_shape, output.dtype, log_sum_exp.dtype)
