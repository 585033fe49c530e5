"""The public functions of the backward pass: gradients of exact attention, in this process and over a ring.

Matching outputs hide errors of ownership and reduction; gradients do not forgive them. So the same counts, policies and
loop serve both passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringmpi.api import Attention
from ringmpi.arguments import batched, check_like, checked_arrays, shard_problem, whole_problem
from ringmpi.backends import get_backend
from ringmpi.backends.base import Backend
from ringmpi.backward_pass import BackwardPass, agree_on_backward
from ringmpi.comm.agreement import together
from ringmpi.comm.local import LocalRing
from ringmpi.core.cores import threads_alone
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.gradients import Saved, delta_of, sink_gradient
from ringmpi.core.masking import Mask
from ringmpi.core.problem import Problem
from ringmpi.core.sharding import Sharding
from ringmpi.errors import ShapeError
from ringmpi.ring import Ring
from ringmpi.ring_pass import all_finite, share_finite
from ringmpi.travel import Operands, travel_by_name

Array = NDArray[Any]


@dataclass(frozen=True)
class AttentionGradients:
    """Gradients with the shapes and dtype of what they belong to; `dq, dk, dv = gradients` takes the first three.

    query, key, value   as q, k, v
    sink_logits         [query_heads] float64, None where there are no sinks; in a ring the sum over all ranks
    alibi_slopes        likewise
    travel              "keys" or "queries": what has travelled
    pairs               pairs that the kernels counted, over batch and query heads; of this rank in a ring
    """

    query: Array
    key: Array
    value: Array
    sink_logits: Array | None
    alibi_slopes: Array | None
    travel: str
    pairs: int

    def __iter__(self) -> Iterator[Array]:
        """The gradients of q, k and v."""
        return iter((self.query, self.key, self.value))


def attention_backward(
    grad_output: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Attention,
    *,
    grad_log_sum_exp: Array | None = None,
    mask: Mask | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    ranks: int = 1,
    sharding: str | Sharding = "zigzag",
    key_sharding: Sharding | None = None,
    schedule: str = "ring",
    travel: str = "auto",
    backend: str = "auto",
) -> AttentionGradients:
    """Gradients of `attention`, in this process; `ranks` > 1 drives a simulated ring.

    Parameters
    ----------
    grad_output : array
        Shape and dtype of `out.output`: the gradient of a scalar with respect to it. Any strides.
    q, k, v : array
        As given to `attention`.
    out : Attention
        What it returned; the options must be those that it was given.
    grad_log_sum_exp : array, optional
        Shape of `out.log_sum_exp`, where the scalar depends on that as well. Where a row sees no key it has no effect.
    travel : str
        "keys": keys and values visit the queries, as in the forward pass. "queries": queries visit the keys. "auto":
        the one that moves fewer bytes.
    mask, scale, softcap, sink_logits, alibi_slopes, dropout, seed : optional
        As in `attention`: with the seed of the forward pass the same pairs are dropped.
    ranks, sharding, key_sharding, schedule, backend : optional
        As in `attention`.

    Returns
    -------
    AttentionGradients
        Summed in float32 (float64 for float64), cast once.

    Raises
    ------
    ShapeError, MaskError, BackendError
        If anything does not fit together; the message says what to do.

    Source
    ------
    Dao et al. 2022, FlashAttention, appendix B; Liu, Zaharia, Abbeel 2023, section 3.
    """
    arrays = checked_arrays(query=q, key=k, value=v)
    problem = whole_problem(
        arrays,
        mask=mask,
        ranks=ranks,
        shardings=(sharding, key_sharding),
        schedule=schedule,
        scale=scale,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sink_logits=sink_logits,
        dropout=dropout,
        seed=seed,
    )
    saved = _saved(problem, arrays, grad_output, out, grad_log_sum_exp)
    query, key, value = batched(arrays)
    kernel = get_backend(backend, threads=threads_alone())
    return _simulated(problem, Operands(query, key, value, saved), travel, kernel, like=arrays[0])


def ring_attention_backward(
    grad_output: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Attention,
    *,
    ring: Ring,
    sharding: Sharding,
    key_sharding: Sharding | None = None,
    grad_log_sum_exp: Array | None = None,
    mask: Mask | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    schedule: str = "ring",
    travel: str = "auto",
    backend: str = "auto",
) -> AttentionGradients:
    """Gradients of `ring_attention`, of the shards of this rank. Collective.

    Every rank of `ring` must call this with the same options, its own shards, and what `ring_attention` gave it.
    Parameters are those of `attention_backward` and `ring_attention`.

    Raises
    ------
    ShapeError, MaskError, BackendError, RingError
        On all ranks, if anything does not fit on any, or if the ranks disagree.
    """
    transport = ring.transport

    def prepare() -> tuple[Problem, list[Array], Saved, Backend]:
        arrays = checked_arrays(query=q, key=k, value=v)
        problem = shard_problem(
            arrays,
            place=(ring.rank, ring.size),
            mask=mask,
            shardings=(sharding, key_sharding),
            schedule=schedule,
            scale=scale,
            softcap=softcap,
            alibi_slopes=alibi_slopes,
            sink_logits=sink_logits,
            dropout=dropout,
            seed=seed,
        )
        kernel = get_backend(backend, threads=ring.threads)
        return problem, arrays, _saved(problem, arrays, grad_output, out, grad_log_sum_exp), kernel

    problem, arrays, saved, kernel = together(transport, "checking the arguments", prepare, checks=True)
    backward = agree_on_backward(transport, problem, kernel, travel)
    query, key, value = batched(arrays)
    operands = Operands(query, key, value, saved)
    finite = share_finite(transport, _finite_inputs(operands))
    transport.drive(backward.loop(transport, operands, finite), backward.timeline.where)
    grads = together(transport, "finishing the pass", backward.finish)
    per_head = transport.exchange((backward.slope, _sinks(problem, saved)), "adding gradients of heads")
    slope, sinks = (sum(parts[1:], start=parts[0]) for parts in zip(*per_head, strict=True))
    return _given(problem, grads, (slope, sinks), backward.travel.name, backward.pairs_attended, like=arrays[0])


def _saved(
    problem: Problem, arrays: list[Array], grad_output: Array, out: Attention, grad_log_sum_exp: Array | None
) -> Saved:
    """What the rows bring along, with a batch axis."""
    if not isinstance(out, Attention):
        raise ShapeError(f"out is a {type(out).__name__}; give the Attention that the forward call returned, whole.")
    if out.meaning != problem.meaning():
        raise ShapeError(
            "out was computed with another mask, scale, softcap, sinks, slopes, dropout, seed, dtype or heads; "
            "give the backward call the options of the forward call."
        )
    shape = (*arrays[0].shape[:-1], problem.heads.value_dim)
    (upstream,) = checked_arrays(grad_output=grad_output)
    check_like("grad_output", upstream, shape)
    check_like("out.output", out.output, shape)
    check_like("out.log_sum_exp", out.log_sum_exp, shape[:-1])
    if grad_log_sum_exp is not None:
        check_like("grad_log_sum_exp", grad_log_sum_exp, shape[:-1])
    wide = accumulate_dtype(problem.dtype)
    rows = (problem.heads.batch, problem.heads.query_heads, -1)
    # contiguous: for other strides the row sums would have other bits
    upstream, output = map(np.ascontiguousarray, batched([upstream.astype(problem.dtype, copy=False), out.output]))
    log_sum_exp = np.ascontiguousarray(out.log_sum_exp, wide).reshape(rows[0], rows[1], upstream.shape[2])
    extra = None if grad_log_sum_exp is None else grad_log_sum_exp.reshape(log_sum_exp.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        return Saved(upstream, log_sum_exp, delta_of(upstream, output, extra, wide))


def _simulated(problem: Problem, whole: Operands, travel: str, backend: Backend, *, like: Array) -> AttentionGradients:
    """All ranks of a ring in this process."""
    ring, queries, keys = LocalRing(problem.size), problem.queries, problem.keys
    ways = [travel_by_name(travel, problem, rank) for rank in range(ring.size)]
    pairs = np.stack([way.work.pairs() for way in ways])
    passes = [BackwardPass(problem, rank, backend, ways[rank], pairs[rank], pairs > 0) for rank in range(ring.size)]
    finite = np.full(ring.size, all_finite(*_finite_inputs(whole)))
    loops = []
    for comm, backward in zip(ring.ranks, passes, strict=True):
        shards = Operands(
            queries.select(whole.q, comm.rank),
            keys.select(whole.k, comm.rank),
            keys.select(whole.v, comm.rank),
            _select_saved(queries, whole.saved, comm.rank),
        )
        loops.append(backward.loop(comm, shards, finite))
    ring.drive(loops)
    grads = tuple(np.empty_like(array) for array in (whole.q, whole.k, whole.v))
    for rank, backward in enumerate(passes):
        for target, shard, owner in zip(grads, backward.finish(), (queries, keys, keys), strict=True):
            owner.put(target, shard, rank)
    slope = sum((backward.slope for backward in passes[1:]), start=passes[0].slope)
    attended = sum(backward.pairs_attended for backward in passes)
    return _given(problem, grads, (slope, _sinks(problem, whole.saved)), ways[0].name, attended, like=like)


def _select_saved(queries: Sharding, saved: Saved, rank: int) -> Saved:
    log_sum_exp, delta = (queries.select(rows[..., None], rank)[..., 0] for rows in (saved.log_sum_exp, saved.delta))
    return Saved(queries.select(saved.grad_output, rank), log_sum_exp, delta)


def _finite_inputs(operands: Operands) -> tuple[Array, ...]:
    return operands.q, operands.k, operands.v, operands.saved.grad_output


def _sinks(problem: Problem, saved: Saved) -> Array:
    """Gradient of the sinks from these rows; of no use where there are none."""
    sinks = problem.sink_logits
    return np.zeros(problem.heads.query_heads) if sinks is None else sink_gradient(sinks, saved)


def _given(
    problem: Problem,
    grads: tuple[Array, ...],
    per_head: tuple[Array, Array],
    travel: str,
    pairs: int,
    *,
    like: Array,
) -> AttentionGradients:
    query, key, value = grads if like.ndim == 4 else (grad[0] for grad in grads)
    slope, sinks = per_head
    return AttentionGradients(
        query,
        key,
        value,
        sink_logits=None if problem.sink_logits is None else sinks,
        alibi_slopes=None if problem.scoring.alibi_slopes is None else slope.astype(np.float64),
        travel=travel,
        pairs=pairs,
    )
