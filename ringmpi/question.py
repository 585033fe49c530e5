"""What a configuration asks: a problem, and the arrays of the input file that it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from numpy.typing import NDArray

from ringmpi.config import RunConfig
from ringmpi.config_mask import build_mask
from ringmpi.core.problem import Problem, pose_problem
from ringmpi.core.sharding import shardings_by_name
from ringmpi.storage.inputs import Inputs
from ringmpi.storage.source import ArraySource


@dataclass(frozen=True)
class Question:
    """A problem and where its arrays are. Usable while the input file is open."""

    problem: Problem
    q: ArraySource
    k: ArraySource
    v: ArraySource


def question_of(config: RunConfig, inputs: Inputs, *, ranks: int = 1) -> Question:
    """The question that `config` asks of an open input file, posed to a ring of `ranks`.

    Raises
    ------
    StorageError, ShapeError, MaskError
        If the file lacks a dataset, or its arrays do not fit together or do not fit the mask.
    """
    q, k, v = (inputs.array(name) for name in (config.input.query, config.input.key, config.input.value))
    mask = build_mask(config.attention.mask, inputs.read_vector)
    queries, keys = shardings_by_name(config.ring.sharding, mask, q.length, k.length, ranks)
    numbers = partial(_numbers, inputs)
    problem = pose_problem(
        (q, k, v),
        mask=mask,
        queries=queries,
        keys=keys,
        schedule=config.ring.schedule,
        scale=config.attention.scale,
        softcap=config.attention.softcap,
        alibi_slopes=numbers(config.attention.alibi),
        sink_logits=numbers(config.attention.sink_logits),
    )
    return Question(problem, q, k, v)


def _numbers(inputs: Inputs, option: str | Sequence[float] | None) -> NDArray[Any] | Sequence[float] | None:
    """An option that is a list of numbers, or names a dataset of them."""
    return inputs.read_vector(option) if isinstance(option, str) else option
