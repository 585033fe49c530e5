"""Output files to verify, written as a run writes them, but computed by the plain formula."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ringmpi.asking.question import question_of
from ringmpi.config import parse_config, resolved
from ringmpi.core.dtypes import accumulate_dtype, bfloat16, native
from ringmpi.core.problem import Problem
from ringmpi.core.reference import dense_attention
from ringmpi.core.sharding import Sharding, shardings_by_name
from ringmpi.storage.account import Account, BackwardAccount, PairCounts, PassTimeline, Provenance, Timeline
from ringmpi.storage.bits import create_floats
from ringmpi.storage.inputs import Inputs, file_identity
from ringmpi.storage.merge import merge_shards
from ringmpi.storage.shards import ShardGradients, shard_path, write_shard
from ringmpi.storage.virtual import link_shards
from tests.dense import dense_attention_backward

LENGTH = 60
SHAPES = {"q": (4, LENGTH, 5), "k": (2, LENGTH, 5), "v": (2, LENGTH, 3)}
UPSTREAM = {"do": (4, LENGTH, 3)}


@dataclass(frozen=True)
class Case:
    """What to write. `backward`: the [backward] table, for gradients too.

    `pairs_short`: as if a rank had not counted that many pairs. `spoil` changes the arrays.

    checksums: those of the input are recorded, as a run does that has read all of it. `cancel`: so large are two
    channels of queries and keys whose products cancel. `spoil_input` changes arrays of the input, by name.
    """

    dtype: Any = np.float32
    attention: str = 'mask = "causal"'
    sharding: str = "zigzag"
    ranks: int = 3
    batch: tuple[int, ...] = ()
    size: float = 1.0
    pairs_short: int = 0
    checksums: bool = False
    spoil: Any = None
    backward: str = ""
    spoil_gradients: Any = None
    virtual: bool = False
    cancel: float = 0.0
    spoil_input: Any = None


def write_run(folder: Path, case: Case) -> Path:
    """Write input.h5 and out.h5; return the path of the latter."""
    _write_input(folder / "input.h5", case)
    config = parse_config(f"""
[input]
file = "input.h5"
query = "q"
key = "k"
value = "v"
[attention]
{case.attention}
[ring]
sharding = "{case.sharding}"
{case.backward}
[output]
file = "out.h5"
""")
    with Inputs(folder / "input.h5") as inputs:
        question = question_of(config, inputs)
        identity = file_identity(folder / "input.h5") | (question.checksums() if case.checksums else {})
        arrays = [source.rows(np.arange(source.length)) for source in question.arrays.values()]
        shapes = question.shapes
    problem = question.problem
    output, log_sum_exp = _attend(problem, arrays[:3])
    gradients = _gradients(problem, arrays, output) if case.backward else None
    if case.spoil:
        case.spoil(output, log_sum_exp)
    if case.spoil_gradients:
        case.spoil_gradients(*gradients)
    queries, keys = shardings_by_name(case.sharding, problem.mask, LENGTH, LENGTH, case.ranks)
    destination = folder / "out.h5"
    parts = [shard_path(destination, rank) for rank in range(case.ranks)]
    for rank, part in enumerate(parts):
        own = queries.positions(rank)
        write_shard(
            part,
            ranges=queries.shards[rank],
            output=output[:, :, own],
            log_sum_exp=log_sum_exp[:, :, own],
            gradients=_shard(gradients, queries, keys, rank) if gradients else None,
        )
    account = _account(problem, case, resolved(config), identity)
    (link_shards if case.virtual else merge_shards)(parts, destination, shapes=shapes, account=account)
    return destination


def _write_input(path: Path, case: Case) -> None:
    rng = np.random.default_rng(7)
    with h5py.File(path, "w") as file:
        for name, shape in (SHAPES | UPSTREAM if case.backward else SHAPES).items():
            array = (case.size * rng.standard_normal((*case.batch, *shape))).astype(case.dtype)
            if case.cancel and name in ("q", "k"):
                array[..., 0] += case.cancel
                array[..., -1] = array[..., 0] if name == "q" else -case.cancel
            if case.spoil_input:
                case.spoil_input(name, array)
            if array.dtype == bfloat16:
                dataset = create_floats(file, name, array.shape, bfloat16)
                dataset.id.write(h5py.h5s.ALL, h5py.h5s.ALL, array.view("<u2"), dataset.id.get_type())
            else:
                file[name] = array
        if case.backward:
            upstream = rng.standard_normal((*case.batch, *SHAPES["q"][:2]))
            file["dlse"] = upstream.astype(accumulate_dtype(native(np.dtype(case.dtype))))
        file["lengths"] = np.array([10, 25, 0, 25])
        file["slopes"] = np.array([0.5, 0.25, 0.125, 0.0])


def _attend(problem: Problem, arrays: list[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    q, k, v = arrays
    output, log_sum_exp = dense_attention(
        q,
        k,
        v,
        problem.mask.allowed(LENGTH, LENGTH),
        problem.scoring,
        sink_logits=problem.sink_logits,
        dtype=accumulate_dtype(problem.dtype),
    )
    return output.astype(problem.dtype), log_sum_exp


def _gradients(problem: Problem, arrays: list[NDArray[Any]], output: NDArray[Any]) -> list[NDArray[Any]]:
    """Of query, key and value, by the plain formula in the accumulation dtype, from the output that is kept."""
    q, k, v, grad_output, *extra = arrays
    gradients = dense_attention_backward(
        grad_output,
        q,
        k,
        v,
        problem.mask.allowed(LENGTH, LENGTH),
        problem.scoring,
        dtype=accumulate_dtype(problem.dtype),
        sink_logits=problem.sink_logits,
        grad_log_sum_exp=extra[0] if extra else None,
        output=output,
    )
    return [array.astype(problem.dtype) for array in gradients[:3]]


def _shard(gradients: list[NDArray[Any]], queries: Sharding, keys: Sharding, rank: int) -> ShardGradients:
    query, key, value = gradients
    rows, own = queries.positions(rank), keys.positions(rank)
    return ShardGradients(query[:, :, rows], key[:, :, own], value[:, :, own], keys.shards[rank])


def _account(problem: Problem, case: Case, configuration: str, identity: dict[str, str | int]) -> Account:
    per_step = np.zeros((case.ranks, case.ranks), np.int64)
    attended = problem.pairs_asked - case.pairs_short
    per_step[-1] = attended // case.ranks
    per_step[0, 0] = attended - per_step.sum()
    ranks, seconds = tuple(range(case.ranks)), np.zeros(per_step.shape)
    nothing = np.zeros_like(per_step)
    return Account(
        Provenance({"ringmpi": "0"}, ("node",) * case.ranks, ranks, configuration, "ringmpi run", "", "", identity),
        Timeline(seconds, seconds, seconds, nothing, nothing, per_step, nothing[:, 0], seconds[:, 0], seconds[:, 0]),
        PairCounts(problem.pairs_asked, attended, problem.heads.query_slabs),
        _backward_account(problem, case, per_step) if case.backward else None,
    )


def _backward_account(problem: Problem, case: Case, per_step: NDArray[np.int64]) -> BackwardAccount:
    per_step = np.pad(per_step, ((0, 0), (0, 1)))
    seconds, nothing = np.zeros(per_step.shape), np.zeros_like(per_step)
    timeline = PassTimeline(seconds, seconds, seconds, nothing, nothing, per_step)
    return BackwardAccount(timeline, problem.pairs_asked, problem.pairs_asked - case.pairs_short, "keys")
