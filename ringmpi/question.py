"""What a configuration asks: a problem, and the arrays of the input file that it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ringmpi.config import RunConfig
from ringmpi.config_mask import ReadVector, build_mask
from ringmpi.core.dtypes import SUPPORTED
from ringmpi.core.problem import HasShape, Problem, pose_problem
from ringmpi.core.shapes import LENGTH_AXIS
from ringmpi.core.sharding import shardings_by_name
from ringmpi.errors import StorageError
from ringmpi.storage.inputs import Inputs, file_identity
from ringmpi.storage.source import ArraySource


class HasLength(HasShape, Protocol):
    """An array of a file, or one that is only thought of."""

    @property
    def length(self) -> int:
        """Positions."""
        ...


@dataclass(frozen=True)
class Question:
    """A problem and where its arrays are. Usable while the input file is open."""

    problem: Problem
    q: ArraySource
    k: ArraySource
    v: ArraySource

    def checksums(self) -> dict[str, str]:
        """Name -> checksum of what the file holds now (core/content.py). Reads all of query, key and value."""
        return {name: str(array.content()) for name, array in (("query", self.q), ("key", self.k), ("value", self.v))}


def question_of(config: RunConfig, inputs: Inputs, *, ranks: int = 1) -> Question:
    """The question that `config` asks of an open input file, posed to a ring of `ranks`.

    Raises
    ------
    StorageError, ShapeError, MaskError
        If the file lacks a dataset, or its arrays do not fit together or do not fit the mask.
    """
    q, k, v = (inputs.array(name) for name in (config.input.query, config.input.key, config.input.value))
    return Question(problem_of(config, (q, k, v), inputs.read_vector, ranks=ranks), q, k, v)


def problem_of(config: RunConfig, arrays: Sequence[HasLength], read_vector: ReadVector, *, ranks: int = 1) -> Problem:
    """The problem alone: of (query, key, value) `arrays` only shapes and dtypes are looked at.

    Parameters
    ----------
    read_vector : callable
        From the name of a small dataset to its numbers.

    Raises
    ------
    StorageError, ShapeError, MaskError
        As `question_of`.
    """
    q, k, _ = arrays
    mask = build_mask(config.attention.mask, read_vector)
    queries, keys = shardings_by_name(config.ring.sharding, mask, q.length, k.length, ranks)
    numbers = partial(_numbers, read_vector)
    return pose_problem(
        arrays,
        mask=mask,
        queries=queries,
        keys=keys,
        schedule=config.ring.schedule,
        scale=config.attention.scale,
        softcap=config.attention.softcap,
        alibi_slopes=numbers(config.attention.alibi),
        sink_logits=numbers(config.attention.sink_logits),
        dropout=config.attention.dropout,
        seed=config.attention.seed,
    )


@dataclass(frozen=True)
class SizedArray:
    """An array that is only thought of: a plan needs no more."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def length(self) -> int:
        """Positions."""
        return self.shape[LENGTH_AXIS]


def sized_arrays(heads: tuple[int, int], length: int, head_dim: int, dtype: str) -> tuple[SizedArray, ...]:
    """Query, key and value of (query, key) heads, all equally long."""
    query_heads, key_heads = heads
    kind = next(known for known in SUPPORTED if known.name == dtype)
    return tuple(SizedArray((count, length, head_dim), kind) for count in (query_heads, key_heads, key_heads))


def check_unchanged(config: RunConfig, recorded: Mapping[str, str | int]) -> None:
    """Raise StorageError unless the input of a run is the one that was read. It must not be open: HDF5 would remember.

    A file of the same size and time of change is. Any other is opened and read again: it may have been touched, or
    written once more with the same numbers.

    Parameters
    ----------
    recorded : mapping
        What `Inputs.identity` said before the run, and the checksums of what was read.
    """
    path = config.input.file
    found = file_identity(path)
    if all(recorded[key] == found[key] for key in ("size_bytes", "mtime_ns")):
        return
    with Inputs(path) as inputs:
        now = question_of(config, inputs).checksums()
    if changed := [name for name, checksum in now.items() if recorded.get(name) != checksum]:
        raise StorageError(
            f"input {path} changed during the run: {' and '.join(changed)} cannot be shown to be as they were read; "
            f"the result would belong to neither. Run again."
        )


def _numbers(read_vector: ReadVector, option: str | Sequence[float] | None) -> NDArray[Any] | Sequence[float] | None:
    """An option that is a list of numbers, or names a dataset of them."""
    return read_vector(option) if isinstance(option, str) else option
