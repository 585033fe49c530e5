"""What a configuration asks: a problem, and the arrays of the input file that it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ringmpi.asking.config_mask import ReadVector, build_mask
from ringmpi.config import RunConfig
from ringmpi.config.options import BackwardOptions
from ringmpi.config.record_options import RecordOptions
from ringmpi.core.attention_map import block_count
from ringmpi.core.dtypes import SUPPORTED, accumulate_dtype
from ringmpi.core.late_recording import LateRecording
from ringmpi.core.problem import HasShape, Problem, pose_problem
from ringmpi.core.shapes import LENGTH_AXIS
from ringmpi.core.sharding import default_block, shardings_by_name
from ringmpi.errors import ShapeError, StorageError
from ringmpi.storage.inputs import Inputs, file_identity
from ringmpi.storage.layout import LOG_SUM_EXP, OUTPUT, result_shapes
from ringmpi.storage.record_layout import RECEIVED, RECORDED_MAP, TOP_KEYS, TOP_ROWS, TOP_WEIGHTS
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
    late: LateRecording | None = None

    @property
    def has_map_pass(self) -> bool:
        """Whether all pairs are met once more for the attention map, or for what keys receive."""
        return self.late is not None and self.late.has_map_pass

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
        key = None if self.grad_output is None else self.k.shape
        return result_shapes(output, key, rows=self.problem.record is not None)

    @property
    def late_shapes(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shapes and dtypes of what is recorded after the forward pass, by name."""
        if (late := self.late) is None:
            return {}
        heads, wide = self.q.shape[:-2], accumulate_dtype(self.problem.dtype)
        found: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
        if late.map_block is not None:
            blocks = (block_count(length, late.map_block) for length in (self.q.length, self.k.length))
            found[RECORDED_MAP] = ((*heads, *blocks), wide)
        if late.received:
            found[RECEIVED] = ((*heads, self.k.length), wide)
        if late.top_rows is not None:
            top = (*heads, len(late.top_rows), late.top_key_count)
            found |= {
                TOP_ROWS: (late.top_rows.shape, np.dtype(np.int64)),
                TOP_KEYS: (top, np.dtype(np.int64)),
                TOP_WEIGHTS: (top, wide),
            }
        return found

    def checksums(self) -> dict[str, str]:
        """Name -> checksum of what the file holds now (core/content.py). Reads all arrays."""
        return {name: str(array.content()) for name, array in self.arrays.items()}

    def identity(self) -> dict[str, Any]:
        """What is computed, field by field, wherever and in whatever order; the contents of arrays apart."""
        problem, scoring = self.problem, self.problem.scoring
        identity = {
            "mask": [str(problem.mask), problem.mask.fingerprint()],
            "pairs_asked": problem.pairs_asked,
            "scale": scoring.scale,
            "softcap": scoring.softcap,
            "alibi": None if scoring.alibi_slopes is None else scoring.alibi_slopes.tolist(),
            "sink_logits": None if problem.sink_logits is None else problem.sink_logits.tolist(),
            "dropout": scoring.dropout,
            "seed": scoring.seed if scoring.dropout else None,
            "dtype": str(problem.dtype),
            "record_sinks": None if problem.record is None else problem.record.sinks,
            "reproducible": problem.reproducible,
            "block": [problem.queries.block, problem.keys.block] if problem.reproducible else None,
        }
        for name in ("query", "key", "value", "grad_output", "grad_log_sum_exp"):
            array = self.arrays.get(name)
            identity[name] = None if array is None else [array.name.strip("/"), list(array.shape)]
        return identity | (LateRecording() if self.late is None else self.late).identity()


def question_of(config: RunConfig, inputs: Inputs, *, ranks: int = 1) -> Question:
    """The question that `config` asks of an open input file, posed to a ring of `ranks`.

    Raises
    ------
    StorageError, ShapeError, MaskError
        If the file lacks a dataset, or its arrays do not fit together or do not fit the mask.
    """
    q, k, v = (inputs.array(name) for name in (config.input.query, config.input.key, config.input.value))
    question = Question(problem_of(config, (q, k, v), inputs.read_vector, ranks=ranks), q, k, v)
    if config.record is not None and config.record.has_late_record:
        question = replace(question, late=_late_recording(question.problem, config.record, inputs.read_vector))
    return question if config.backward is None else _with_gradients(question, config.backward, inputs)


def _late_recording(problem: Problem, options: RecordOptions, read_vector: ReadVector) -> LateRecording:
    """What [record] asks for after the forward pass, once it fits."""
    rows, keys = _numbers(read_vector, options.top_rows), problem.keys.length
    if options.top_keys is not None and options.top_keys > max(keys, 1):
        raise ShapeError(
            f"[record] top_keys = {options.top_keys:,}, but there are {keys:,} keys. Ask for at most that many, or "
            f"leave it out."
        )
    late = LateRecording(
        map_block=options.map_block,
        received=options.received,
        top_rows=None if rows is None else np.asarray(rows),
        top_key_count=0 if rows is None else options.top_key_count,
    )
    late.check(problem)
    return late


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
            f"[backward] {option}: dataset {array.name} is {array.shape} {array.dtype}; expected {shape} {dtype}, "
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
        record=None if config.record is None else config.record.recording,
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
            f"input {path} changed during the run: {' and '.join(changed)} may not be what was read; "
            f"the result would match neither version. Run again."
        )


def _numbers(read_vector: ReadVector, option: str | Sequence[float] | None) -> NDArray[Any] | Sequence[float] | None:
    """An option that is a list of numbers, or names a dataset of them."""
    return read_vector(option) if isinstance(option, str) else option
