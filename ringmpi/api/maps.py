"""The public functions of the attention map: what blocks of queries give to blocks of keys, and what each key receives.

Exact: all pairs of the mask are met once more, with the log_sum_exp of the forward pass, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringmpi.api.arguments import batched, check_like, checked_arrays, shard_problem, whole_problem
from ringmpi.api.device_arrays import as_given, to_host
from ringmpi.api.simulated_ring import drive_all
from ringmpi.backends import get_backend
from ringmpi.backends.base import Backend
from ringmpi.comm.agreement import shared, together
from ringmpi.comm.protocol import Communicator, Flight
from ringmpi.core.attention_map import averaged, block_count, check_block, check_sums, rows_with_keys
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.masking import Mask
from ringmpi.core.printed import Printed
from ringmpi.core.problem import Problem
from ringmpi.core.rank_work import KeyWork
from ringmpi.core.sharding import Sharding
from ringmpi.core.tolerance import finite_scale, longest_rows, most_of_weights, score_terms
from ringmpi.errors import ShapeError
from ringmpi.passes.map_gathering import gather_map
from ringmpi.passes.map_pass import MapOperands, MapPass, agree_on_map, map_problem
from ringmpi.process.cores import threads_alone
from ringmpi.ring import Ring

Array = NDArray[Any]


@dataclass(frozen=True, repr=False)
class AttentionMap(Printed):
    """What queries give and keys receive, in weights p = e^(score - log_sum_exp).

    map        [(batch,) query_heads, query_blocks, key_blocks]  float32 (float64 for float64): weight that an average
               row of the query block, of those that see a key, gives to the keys of the key block. A row of it sums
               to 1, or to less by what a sink logit takes; to 0 where no row of the block sees a key
    received   [(batch,) query_heads, keys]  same dtype: weight that the key receives, summed over queries
    block      positions of a block; the last one may have fewer
    pairs      (query, key) pairs that the kernels counted, over batch and query heads; of this rank in a ring
    """

    map: Array | None
    received: Array
    block: int
    pairs: int


def attention_map(
    q: Array,
    k: Array,
    log_sum_exp: Array,
    *,
    block: int,
    mask: Mask | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: ArrayLike | None = None,
    ranks: int = 1,
    sharding: str | Sharding = "zigzag",
    key_sharding: Sharding | None = None,
    schedule: str = "auto",
    backend: str = "auto",
) -> AttentionMap:
    """The exact attention map in blocks of positions, in this process; `ranks` > 1 drives a simulated ring.

    Parameters
    ----------
    q, k : array
        As given to `attention`.
    log_sum_exp : array [(batch,) query_heads, queries]
        What `attention` returned with the options given here. Its sink logits are in it; dropout is not: weights are
        those that the pairs would have without.
    block : int
        Positions of a block of queries, and of keys.
    mask, scale, softcap, alibi_slopes : optional
        As in `attention`.
    ranks, sharding, key_sharding, schedule, backend : optional
        As in `attention`.

    Returns
    -------
    AttentionMap
        In the caller's order. Summed in float64, cast once.

    Raises
    ------
    ShapeError, MaskError, BackendError
        If anything does not fit together, or rows of the map sum to more than 1: then log_sum_exp belongs to
        other options. The message says what to do.

    Source
    ------
    Weights recomputed from log_sum_exp: Dao et al. 2022, FlashAttention, appendix B.
    """
    given = as_given(query=q, key=k, log_sum_exp=log_sum_exp)
    arrays = checked_arrays(query=q, key=k)
    problem = map_problem(
        whole_problem(
            arrays,
            mask=mask,
            ranks=ranks,
            shardings=(sharding, key_sharding),
            schedule=schedule,
            scale=scale,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
        )
    )
    block = check_block(problem.heads, problem.queries.length, problem.keys.length, block)
    whole = _operands(arrays, log_sum_exp, problem)
    found = _simulated(problem, whole, block, get_backend(backend, threads=threads_alone()), like=arrays[0])
    return _as(given, found)


def ring_attention_map(
    q: Array,
    k: Array,
    log_sum_exp: Array,
    *,
    ring: Ring,
    sharding: Sharding,
    block: int,
    key_sharding: Sharding | None = None,
    mask: Mask | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: ArrayLike | None = None,
    schedule: str = "auto",
    backend: str = "auto",
) -> AttentionMap:
    """The exact attention map over a ring. Collective.

    Every rank of `ring` must call this with the same options, its own shards, and the log_sum_exp that
    `ring_attention` gave it. Parameters are those of `attention_map` and `ring_attention`.

    Returns
    -------
    AttentionMap
        `received` of this rank's keys; `map`, of the whole sequence, only on rank 0: None elsewhere.

    Raises
    ------
    ShapeError, MaskError, BackendError, RingError
        On all ranks, if anything does not fit on any, or if the ranks disagree.
    """

    def prepare() -> tuple[Problem, list[Array], MapOperands, int, Backend, Callable[[Array], Array]]:
        given = as_given(query=q, key=k, log_sum_exp=log_sum_exp)
        arrays = checked_arrays(query=q, key=k)
        problem = shard_problem(
            arrays,
            place=(ring.rank, ring.size),
            mask=mask,
            shardings=(sharding, key_sharding),
            schedule=schedule,
            scale=scale,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
        )
        positions = check_block(problem.heads, problem.queries.length, problem.keys.length, block)
        operands = _operands(arrays, log_sum_exp, problem)
        return problem, arrays, operands, positions, ring.backend(backend), given

    with ring.call("ring_attention_map") as transport:
        prepared = together(transport, "checking the arguments", prepare, checks=True)
        problem, arrays, operands, block, kernel, given = prepared
        one = agree_on_map(transport, problem, kernel, block)
        own = shared(transport, "looking for NaN and inf", lambda: _sizes(operands))
        all_finite, largest, queries, keys = zip(*own, strict=True)
        terms = score_terms(np.max(queries, axis=0), np.max(keys, axis=0), problem.scoring.scale)
        finite, most = all(all_finite), most_of_weights(problem.dtype, np.array(largest), terms)
        transport.drive(one.loop(transport, operands, finite), one.timeline.where)
        sums = together(transport, "finishing the pass", one.finish)
        blocks = gather_map(transport, one.problem, sums, block)

        def check() -> None:
            if blocks is not None:
                check_sums(blocks, most, finite=finite)

        together(transport, "checking the sums of the map", check, checks=True)
    found = _given(one.problem, blocks, sums.received, block, one.pairs_attended, like=arrays[0])
    del prepared, kernel, one  # with their memory of a GPU, where the map may have to go
    return _as(given, found)


def _operands(arrays: list[Array], log_sum_exp: Array, problem: Problem) -> MapOperands:
    """With a batch axis, once log_sum_exp is found to fit."""
    wide, log_sum_exp = accumulate_dtype(problem.dtype), to_host("log_sum_exp", log_sum_exp)
    if not isinstance(log_sum_exp, np.ndarray) or log_sum_exp.dtype != wide:
        found = getattr(log_sum_exp, "dtype", type(log_sum_exp).__name__)
        raise ShapeError(f"log_sum_exp is {found}; expected an array of {wide}, as `attention` gives it.")
    check_like("log_sum_exp", log_sum_exp, arrays[0].shape[:-1])
    query, key = batched(arrays)
    return MapOperands(query, log_sum_exp.reshape(query.shape[:-1]), key)


def _sizes(operands: MapOperands) -> tuple[bool, float, Array, Array]:
    """Whether all is finite, the largest finite log_sum_exp, and how long rows of queries and keys are."""
    log_sum_exp = finite_scale(operands.log_sum_exp)
    return operands.all_finite(), log_sum_exp, longest_rows(operands.q), longest_rows(operands.k)


def _simulated(problem: Problem, whole: MapOperands, block: int, backend: Backend, *, like: Array) -> AttentionMap:
    """All ranks of a ring in this process."""
    queries, keys, heads, finite = problem.queries, problem.keys, problem.heads, whole.all_finite()

    def loop_of(one: MapPass, comm: Communicator) -> Iterator[Flight]:
        shards = MapOperands(
            queries.select(whole.q, comm.rank),
            queries.select(whole.log_sum_exp[..., None], comm.rank)[..., 0],
            keys.select(whole.k, comm.rank),
        )
        return one.loop(comm, shards, finite)

    passes = drive_all(
        [KeyWork(problem, rank).pairs() for rank in range(problem.size)],
        lambda rank, pairs, needed: MapPass(problem, rank, backend, pairs, needed, block=block),
        loop_of,
    )
    counts = block_count(queries.length, block), block_count(keys.length, block)
    blocks = np.zeros((heads.batch, heads.query_heads, *counts))
    received = np.empty((heads.batch, heads.query_heads, keys.length))
    for rank, one in enumerate(passes):
        sums = one.finish()
        blocks[..., sums.key_blocks] += sums.blocks
        keys.put(received, sums.received, rank)
    mean = averaged(blocks, rows_with_keys(problem.slices, queries.length, block))
    terms = score_terms(longest_rows(whole.q), longest_rows(whole.k), problem.scoring.scale)
    check_sums(mean, most_of_weights(problem.dtype, whole.log_sum_exp, terms), finite=finite)
    return _given(problem, mean, received, block, sum(one.pairs_attended for one in passes), like=like)


def _given(
    problem: Problem, blocks: Array | None, received: Array, block: int, pairs: int, *, like: Array
) -> AttentionMap:
    """Cast, and with a batch axis where the caller's arrays have one."""
    dtype = accumulate_dtype(problem.dtype)

    def stored(array: Array) -> Array:
        return (array if like.ndim == 4 else array[0]).astype(dtype, copy=False)

    return AttentionMap(None if blocks is None else stored(blocks), stored(received), block, pairs)


def _as(given: Callable[[Array], Array], found: AttentionMap) -> AttentionMap:
    """With arrays of the kind that the caller's are of."""
    return replace(found, map=None if found.map is None else given(found.map), received=given(found.received))
