"""Does what an output says of its record fit: attributes, which no digest is of, against shapes and configuration.

Asked once, when an output is opened, so that nothing that reads it has to believe them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ringmpi.core.attention_map import block_count
from ringmpi.core.record import FIRST_KEYS
from ringmpi.core.top_keys import MOST_ROWS
from ringmpi.errors import StorageError
from ringmpi.storage.layout import PROVENANCE
from ringmpi.storage.record_layout import (
    BLOCK_ATTRIBUTE,
    KEY_LENGTH_ATTRIBUTE,
    KEYS_ATTRIBUTE,
    RECEIVED,
    RECORD,
    RECORD_DATASETS,
    RECORDED_MAP,
    SINKS,
    TOP_KEYS,
    TOP_ROWS,
    TOP_WEIGHTS,
)

LARGEST = 1 << 53  # of a position
KINDS = {"int64": "i"}  # of dtypes, by that of a layout; of others: floats


def check_record(path: Path, file: Any, output: Sequence[int], key_length: int | None) -> None:
    """Raise StorageError, by the name of what is wrong, unless all that is there fits.

    Parameters
    ----------
    path : Path
    file : h5py.File
        With all datasets and attributes that its layout asks for.
    output : tuple of int
        Shape of /output, [(batch,) query_heads, query_length, value_dim].
    key_length : int or None
        Keys, where gradients tell.
    """
    if RECORD not in file:
        return
    if not isinstance(file[RECORD], h5py.Group):
        raise _changed(path, f"{RECORD} is not a group")
    there = [layout for layout in RECORD_DATASETS if layout.path in file]
    for layout in there:
        _check_kind(path, file[layout.path], layout.path, KINDS.get(layout.dtype, "f"))
    options = _options(file)
    if SINKS in file:
        first = _whole(path, file, SINKS, KEYS_ATTRIBUTE, least=1)
        _check_option(path, options, "sinks", f"{SINKS}@{KEYS_ATTRIBUTE}", first, default=FIRST_KEYS)
    keys = _check_map(path, file, output, options) if RECORDED_MAP in file else None
    lengths = {"the gradients": key_length, f"{RECORDED_MAP}@{KEY_LENGTH_ATTRIBUTE}": keys}
    if RECEIVED in file:
        lengths[RECEIVED] = _shape(path, file, RECEIVED, output[:-2], 1)[0]
    _check_equal(path, {name: length for name, length in lengths.items() if length is not None})
    if TOP_ROWS in file:
        _check_top(path, file, output, options)


def _check_map(path: Path, file: Any, output: Sequence[int], options: dict[str, Any] | None) -> int:
    """Blocks and lengths give the shape of the map; returns the number of keys."""
    block = _whole(path, file, RECORDED_MAP, BLOCK_ATTRIBUTE, least=1)
    keys = _whole(path, file, RECORDED_MAP, KEY_LENGTH_ATTRIBUTE, least=0)
    found = _shape(path, file, RECORDED_MAP, output[:-2], 2)
    needed = block_count(int(output[-2]), block), block_count(keys, block)
    if found != needed:
        raise _changed(
            path,
            f"{RECORDED_MAP} has {found[0]} x {found[1]} blocks, but {output[-2]} queries and {keys} keys in blocks of "
            f"{block} (its attributes) are {needed[0]} x {needed[1]}",
        )
    _check_option(path, options, "map_block", f"{RECORDED_MAP}@{BLOCK_ATTRIBUTE}", block)
    return keys


def _check_top(path: Path, file: Any, output: Sequence[int], options: dict[str, Any] | None) -> None:
    """Chosen rows are rows, and keys and weights are of these."""
    if file[TOP_ROWS].ndim != 1 or len(file[TOP_ROWS]) > MOST_ROWS:
        raise _changed(path, f"{TOP_ROWS} is {list(file[TOP_ROWS].shape)}; expected a list of up to {MOST_ROWS:,}")
    rows = file[TOP_ROWS][...]
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < output[-2]:
        raise _changed(path, f"{TOP_ROWS} has positions from {rows.min()} to {rows.max()} of {output[-2]} queries")
    keys, weights = (_shape(path, file, name, output[:-2], 2) for name in (TOP_KEYS, TOP_WEIGHTS))
    if keys != weights or keys[0] != len(rows):
        raise _changed(
            path, f"{TOP_KEYS}, {TOP_WEIGHTS} and {TOP_ROWS} have {keys}, {weights} and {len(rows)} rows and keys"
        )
    if options is not None and "top_keys" in options:
        _check_option(path, options, "top_keys", f"the last axis of {TOP_KEYS}", keys[1])


def _check_kind(path: Path, dataset: Any, name: str, kind: str) -> None:
    dtype = getattr(dataset, "dtype", None)
    if dtype is None or dtype.kind != kind or dataset.shape is None:
        wanted = "whole numbers" if kind == "i" else "floating-point numbers"
        raise _changed(path, f"{name} is {dtype or 'no dataset'}; expected {wanted}")


def _shape(path: Path, file: Any, name: str, heads: Sequence[int], more: int) -> tuple[int, ...]:
    """The axes behind the heads."""
    shape = tuple(file[name].shape)
    if shape[: len(heads)] != tuple(heads) or len(shape) != len(heads) + more:
        axes = ", ".join([*map(str, heads), *["..."] * more])
        raise _changed(path, f"{name} is {list(shape)}; expected [{axes}], with the heads of the output")
    return shape[len(heads) :]


def _whole(path: Path, file: Any, name: str, attribute: str, *, least: int) -> int:
    """An attribute that is a whole number within its limits."""
    value = file[name].attrs[attribute]
    if not isinstance(value, np.integer | int) or not least <= int(value) <= LARGEST:
        said = repr(value.item() if isinstance(value, np.generic) else value)
        raise _changed(
            path, f"attribute {attribute} of {name} is {said:.60}; expected a whole number from {least} to 2^53"
        )
    return int(value)


def _options(file: Any) -> dict[str, Any] | None:
    """[record] of the configuration; None where there is none, or none that can be read, which others say."""
    try:
        found = tomllib.loads(str(file[PROVENANCE].attrs["configuration"])).get("record")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _check_option(
    path: Path, options: dict[str, Any] | None, option: str, what: str, found: int, default: int | None = None
) -> None:
    """What was recorded is what the run was asked for."""
    asked = found if options is None else options.get(option, default)
    if asked != found:
        raise _changed(path, f"{what} is {found}, but the run was asked for [record] {option} = {asked!r:.60}")


def _check_equal(path: Path, lengths: dict[str, int]) -> None:
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise _changed(path, f"the numbers of keys disagree: {said}")


def _changed(path: Path, what: str) -> StorageError:
    return StorageError(f"{path}: {what}. It was changed; run again.")
