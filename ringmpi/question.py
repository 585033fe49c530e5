"""What a configuration asks: a problem, and the arrays of the input file that it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ringmpi.config import RunConfig
from ringmpi.config.options import BackwardOptions
from ringmpi.config_mask import ReadVector, build_mask
from ringmpi.core.dtypes import SUPPORTED, accumulate_dtype
from ringmpi.core.problem import HasShape, Problem, pose_problem
from ringmpi.core.shapes import LENGTH_AXIS
from ringmpi.core.sharding import default_block, shardings_by_name
from ringmpi.errors import ShapeError, StorageError
from ringmpi.storage.inputs import Inputs, file_identity
from ringmpi.storage.layout import LOG_SUM_EXP, OUTPUT, result_shapes
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
    grad_output: ArraySource | None = None
    grad_log_sum_exp: ArraySource | None = None

    @property
    def arrays(self) -> dict[str, ArraySource]:
        """Those that are asked for, by the names that they have in [input] and [backward]."""
        named = {"query": self.q, "key": self.k, "value": self.v}
        upstream = {"grad_output": self.grad_output, "grad_log_sum_exp": self.grad_log_sum_exp}
        return named | {name: array for name, array in upstream.items() if array is not None}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the arrays of the result, as they are stored: with a batch axis where the input has one."""
        output = (*self.q.shape[:-1], self.problem.heads.value_dim)
        return result_shapes(output, None if self.grad_output is None else self.k.shape)

    def checksums(self) -> dict[str, str]:
        """Name -> checksum of what the file holds now (core/content.py). Reads all arrays."""
        return {name: str(array.content()) for name, array in self.arrays.items()}


def question_of(config: RunConfig, inputs: Inputs, *, ranks: int = 1) -> Question:
    """The question that `config` asks of an open input file, posed to a ring of `ranks`.

    Raises
    ------
    StorageError, ShapeError, MaskError
        If the file lacks a dataset, or its arrays do not fit together or do not fit the mask.
    """
    q, k, v = (inputs.array(name) for name in (config.input.query, config.input.key, config.input.value))
    question = Question(problem_of(config, (q, k, v), inputs.read_vector, ranks=ranks), q, k, v)
    return question if config.backward is None else _with_gradients(question, config.backward, inputs)


def _with_gradients(question: Question, options: BackwardOptions, inputs: Inputs) -> Question:
    """The question with the arrays that [backward] names, once they fit."""
    dtype, shapes = question.problem.dtype, question.shapes
    grad_output, upstream = inputs.array(options.grad_output), None
    _check_upstream("grad_output", grad_output, shapes[OUTPUT], dtype)
    if options.grad_log_sum_exp is not None:
        upstream = inputs.array(options.grad_log_sum_exp, has_dim=False)
        _check_upstream("grad_log_sum_exp", upstream, shapes[LOG_SUM_EXP], accumulate_dtype(dtype))
    return replace(question, grad_output=grad_output, grad_log_sum_exp=upstream)


def _check_upstream(option: str, array: ArraySource, shape: tuple[int, ...], dtype: np.dtype) -> None:
    what = option.removeprefix("grad_")
    if (array.shape, array.dtype) != (shape, dtype):
        raise ShapeError(
            f"[backward] {option}: dataset {array.name} is {array.shape} {array.dtype}; needed is {shape} {dtype}, "
            f"shape and dtype of {what}. Name another dataset, or convert it."
        )


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
    ring = config.ring
    block = ring.block or default_block(reproducible=ring.reproducible)
    queries, keys = shardings_by_name(ring.sharding, mask, q.length, k.length, ranks, block=block)
    numbers = partial(_numbers, read_vector)
    return pose_problem(
        arrays,
        mask=mask,
        queries=queries,
        keys=keys,
        schedule=ring.schedule,
        reproducible=ring.reproducible,
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
