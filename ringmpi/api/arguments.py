"""What users hand in, checked and made a Problem: whole arrays, or the shards of one rank."""

from __future__ import annotations

import warnings
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from ringmpi.api.device_arrays import to_host
from ringmpi.core.dtypes import check_dtype
from ringmpi.core.masking import Mask
from ringmpi.core.problem import Problem, ProblemOptions, pose_problem
from ringmpi.core.record import Recording
from ringmpi.core.shapes import LENGTH_AXIS, with_batch
from ringmpi.core.sharding import Sharding, default_block, shardings_by_name
from ringmpi.core.whole_numbers import whole_number
from ringmpi.errors import ShapeError

Array = NDArray[Any]
Shardings = tuple[str | Sharding, Sharding | None]  # of queries; of keys, None: the same


def checked_arrays(**arrays: Any) -> list[Array]:
    """The arrays on the host, in native byte order; ShapeError names what is no array of a supported dtype."""
    checked = []
    for name, array in arrays.items():
        array = to_host(name, array)
        if not isinstance(array, np.ndarray):
            raise ShapeError(
                f"{name} is a {type(array).__name__}; this version takes NumPy arrays, and arrays on a GPU. "
                f"Use numpy.asarray or numpy.from_dlpack."
            )
        checked.append(array.astype(check_dtype(name, array.dtype), copy=False))
    return checked


def check_like(name: str, array: Array, shape: tuple[int, ...]) -> None:
    """ShapeError where an array has another shape than it must have."""
    if array.shape != shape:
        raise ShapeError(f"{name} has shape {array.shape}; expected {shape}.")


def whole_problem(
    arrays: list[Array],
    *,
    mask: Mask | None,
    ranks: int,
    shardings: Shardings,
    schedule: str,
    **options: Unpack[ProblemOptions],
) -> Problem:
    """The problem of whole (query, key, value) arrays on so many ranks; of (query, key) where there are no values."""
    mask = _mask_of(mask)
    if (size := whole_number(ranks, 1)) is None:
        raise ShapeError(f"ranks = {ranks!r}; expected a whole number >= 1.")
    lengths = arrays[0].shape[LENGTH_AXIS], arrays[1].shape[LENGTH_AXIS]
    queries, keys = shardings
    if isinstance(queries, str):
        block = default_block(reproducible=options.get("reproducible", False))
        queries, keys_by_name = shardings_by_name(queries, mask, *lengths, size, block=block)
        keys = keys if keys is not None else keys_by_name
    keys = keys if keys is not None else queries
    _check_shardings(queries, keys)
    problem = pose_problem(arrays, mask=mask, queries=queries, keys=keys, schedule=schedule, **options)
    for name, length, owned in zip(("query", "key"), lengths, (queries, keys), strict=True):
        _check_length(name, length, owned.length, "its sharding")
    if problem.size != size:
        raise ShapeError(f"the sharding is made for {problem.size} ranks, but ranks = {size}; they must be equal.")
    return problem


def shard_problem(
    arrays: list[Array],
    *,
    place: tuple[int, int],
    mask: Mask | None,
    shardings: tuple[Sharding, Sharding | None],
    schedule: str,
    **options: Unpack[ProblemOptions],
) -> Problem:
    """The problem of which such arrays (values or none) are the shards of rank `place[0]` of `place[1]`."""
    rank, size = place
    queries, keys = shardings[0], shardings[1] if shardings[1] is not None else shardings[0]
    _check_shardings(queries, keys)
    mask = _mask_of(mask)
    problem = pose_problem(arrays, mask=mask, queries=queries, keys=keys, schedule=schedule, **options)
    if problem.size != size:
        raise ShapeError(f"the sharding is made for {problem.size} ranks, the ring has {size}.")
    for name, array, owned in zip(("query", "key"), arrays, (queries, keys), strict=False):
        _check_length(name, array.shape[LENGTH_AXIS], owned.shard_length(rank), f"rank {rank}'s shard")
    return problem


def warn_of_doubts(problem: Problem) -> None:
    """Warn the caller of the public function that calls this of what is hardly meant; so are swapped axes."""
    for doubt in problem.doubts():
        warnings.warn(doubt, stacklevel=3)


def batched(arrays: list[Array]) -> list[Array]:
    """All with a batch axis."""
    return [with_batch(array) for array in arrays]


def recording_of(record: object) -> Recording | None:
    """What is to be recorded: True for all of it, False for nothing, or with options."""
    if isinstance(record, bool):
        return Recording() if record else None
    if not isinstance(record, Recording):
        raise ShapeError(f"record is {record!r}; it must be True, False, or a Recording: Recording(sinks=4).")
    return record


def _mask_of(mask: object) -> Mask:
    """The mask of a call: full by default."""
    if mask is None:
        return Mask.full()
    if not isinstance(mask, Mask):
        raise ShapeError(f"mask is {mask!r}; it must be a Mask, for example Mask.causal() or Mask.window(255, 0).")
    return mask


def _check_shardings(queries: object, keys: object) -> None:
    for name, owned in (("sharding", queries), ("key_sharding", keys)):
        if not isinstance(owned, Sharding):
            raise ShapeError(
                f"{name} is {owned!r}; it must be a Sharding, for example Sharding.zigzag(length, ring.size) with the "
                f"length of the whole sequence."
            )


def _check_length(name: str, found: int, required: int, where: str) -> None:
    if found != required:
        raise ShapeError(f"{name} has {found} positions, but {where} has {required}; they must be equal.")
