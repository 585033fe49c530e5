"""Contenders: each computes a Question by its own documented interface. Nothing is imported before it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

OWN = ("native", "numpy", "cuda")  # backends of ringmpi
PEERS = ("torch", "torch-cuda", "onnxruntime", "jax", "naive")
ON_GPU = ("cuda", "torch-cuda")  # of these: what their host computes says nothing, nor do ceilings of processors
CEILINGS = ("sgemm", "fma", "exp", "exp2")
MODULES = (
    dict.fromkeys(OWN, "own")
    | dict.fromkeys(CEILINGS, "ceilings")
    | {"cuda": "own_cuda"}
    | dict.fromkeys(("torch", "torch-cuda"), "torch_sdpa")
    | {"onnxruntime": "onnx_attention", "jax": "jax_attention", "naive": "textbook"}
)


class UnsupportedError(Exception):
    """The contender's interface has no word for this question, or says no to it. That is not a wrong answer."""


class AbsentError(Exception):
    """The contender, or the device that it computes on, is not here."""


@dataclass(frozen=True)
class Prepared:
    """A question, ready to be computed as often as one likes.

    run    does it; what it gives is for `read`
    read   [output] or, backward, [dq, dk, dv], as float32 or float64 [heads, length, dim]
    pairs  (query, key) pairs over all query heads that the last run says it has attended to; None: it does not say
    about  versions, and which of its kernels works
    amount what one run does, for ceilings: operations or elements
    """

    run: Callable[[], Any]
    read: Callable[[Any], list[Array]]
    about: dict[str, str]
    pairs: Callable[[Any], int | None] = lambda result: None
    amount: float = 0.0


def refuse(**unknown: object) -> None:
    """UnsupportedError, with the names of those options that are given."""
    if given := [name for name, value in unknown.items() if value is not None and value is not False]:
        raise UnsupportedError(f"no {' and no '.join(name.replace('_', ' ') for name in given)}")


def nothing(result: Any) -> list[Array]:
    """For contenders without an answer."""
    return [np.empty(0)]
