"""The public functions of the backward pass: gradients of exact attention, in this process and over a ring.

Matching outputs hide errors of ownership and reduction; gradients do not forgive them. So the same counts, policies and
loop serve both passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringmpi.api.arguments import batched, checked_arrays, shard_problem, whole_problem
from ringmpi.api.attention import Attention
from ringmpi.api.device_arrays import as_given
from ringmpi.api.saved_rows import saved_rows, select_saved, sink_sums
from ringmpi.api.simulated_ring import drive_all
from ringmpi.backends import get_backend
from ringmpi.backends.base import Backend
from ringmpi.comm.agreement import shared, together
from ringmpi.comm.protocol import Communicator, Flight
from ringmpi.core.gradients import Saved
from ringmpi.core.masking import Mask
from ringmpi.core.printed import Printed
from ringmpi.core.problem import Problem
from ringmpi.core.sharding import Sharding
from ringmpi.passes.backward_pass import BackwardPass, agree_on_backward, query_key_value_of
from ringmpi.passes.finite import all_finite, share_finite
from ringmpi.passes.travel import Operands, Travel, ways_by_name
from ringmpi.process.cores import threads_alone
from ringmpi.ring import Ring

Array = NDArray[Any]
Sinks = dict[int, Array]  # gradients of sink_logits, by the piece of queries that they come from


@dataclass(frozen=True, repr=False)
class AttentionGradients(Printed):
    """Gradients with the shapes and dtype of what they belong to; `dq, dk, dv = gradients` takes the first three.

    query, key, value   as q, k, v
    sink_logits         [query_heads] float64, None where there are no sinks; in a ring the sum over all ranks
    alibi_slopes        likewise; None with reproducible too: it sums all pairs, in an order that depends on the ranks
    travel              what travelled: "keys" or "queries", in a broadcast "both"
    pairs               pairs that the kernels counted, over batch and query heads; of this rank in a ring. In a
                        broadcast, where two passes meet the same pairs: of the first
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

    def moved(self, move: Callable[[Array], Array]) -> AttentionGradients:
        """The same, the gradients of q, k and v as `move` gives them; sums over all rows stay on the host."""
        return replace(self, query=move(self.query), key=move(self.key), value=move(self.value))


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
    schedule: str = "auto",
    travel: str = "auto",
    reproducible: bool = False,
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
        What `attention` returned; the options must be those of that call.
    grad_log_sum_exp : array, optional
        Shape of `out.log_sum_exp`, where the scalar depends on that as well. Where a row sees no key it has no effect.
    travel : str
        "keys": keys and values visit the queries, as in the forward pass. "queries": queries visit the keys. "auto":
        the one that moves fewer bytes; in a broadcast both, without gradients.
    mask, scale, softcap, sink_logits, alibi_slopes, dropout, seed : optional
        As in `attention`: with the seed of the forward pass the same pairs are dropped.
    ranks, sharding, key_sharding, schedule, reproducible, backend : optional
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
    given = as_given(grad_output=grad_output, query=q, key=k, value=v)
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
        reproducible=reproducible,
    )
    saved = saved_rows(problem, arrays, grad_output, out, grad_log_sum_exp)
    query, key, value = batched(arrays)
    kernel = get_backend(backend, threads=threads_alone(), reproducible=reproducible)
    found = _simulated(problem, Operands(query, key, value, saved), travel, kernel, like=arrays[0])
    del kernel  # with its memory of a GPU, where the gradients may have to go
    return found.moved(given)


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
    schedule: str = "auto",
    travel: str = "auto",
    reproducible: bool = False,
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

    def prepare() -> tuple[Problem, list[Array], Saved, Backend, Callable[[Array], Array]]:
        given = as_given(grad_output=grad_output, query=q, key=k, value=v)
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
            reproducible=reproducible,
        )
        kernel = ring.backend(backend, reproducible=reproducible)
        return problem, arrays, saved_rows(problem, arrays, grad_output, out, grad_log_sum_exp), kernel, given

    with ring.call("ring_attention_backward") as transport:
        problem, arrays, saved, kernel, given = together(transport, "checking the arguments", prepare, checks=True)
        query, key, value = batched(arrays)
        operands = Operands(query, key, value, saved)
        finite = share_finite(transport, _finite_inputs(operands))
        found = []
        for backward in agree_on_backward(transport, problem, kernel, travel):
            transport.drive(backward.loop(transport, operands, finite), backward.timeline.where)
            grads = together(transport, "finishing the pass", backward.finish)
            found.append(_Found(backward.travel.name, grads, backward.slope, backward.pairs_attended))
        adding = "adding gradients of heads"
        sums = shared(transport, adding, lambda: (found[0].slope, sink_sums(problem, ring.rank, saved)))
        slopes, sinks = zip(*sums, strict=True)
    del kernel, backward  # with their memory of a GPU, where the gradients may have to go
    return _given(problem, found, slopes, sinks, like=arrays[0]).moved(given)


@dataclass(frozen=True)
class _Found:
    """What a pass gives: gradients of q, k and v, None for those that another pass gives; of slopes; pairs."""

    travel: str
    grads: Sequence[Array | None]
    slope: Array
    pairs: int


def _simulated(problem: Problem, whole: Operands, travel: str, backend: Backend, *, like: Array) -> AttentionGradients:
    """All ranks of a ring in this process."""
    ranks = range(problem.size)
    ways = [ways_by_name(travel, problem, rank) for rank in ranks]
    rounds = [_round(problem, whole, way, backend) for way in zip(*ways, strict=True)]
    sinks = [sink_sums(problem, rank, select_saved(problem.queries, whole.saved, rank)) for rank in ranks]
    return _given(problem, [found for found, _ in rounds], rounds[0][1], sinks, like=like)


def _round(problem: Problem, whole: Operands, ways: Sequence[Travel], backend: Backend) -> tuple[_Found, list[Array]]:
    """One pass of all ranks: whole gradients, and those of the slopes rank by rank."""
    queries, keys = problem.queries, problem.keys
    finite = np.full(problem.size, all_finite(*_finite_inputs(whole)))

    def loop_of(backward: BackwardPass, comm: Communicator) -> Iterator[Flight]:
        shards = Operands(
            queries.select(whole.q, comm.rank),
            keys.select(whole.k, comm.rank),
            keys.select(whole.v, comm.rank),
            select_saved(queries, whole.saved, comm.rank),
        )
        return backward.loop(comm, shards, finite)

    passes = drive_all(
        [way.work.pairs() for way in ways],
        lambda rank, pairs, needed: BackwardPass(problem, backend, ways[rank], pairs, needed),
        loop_of,
    )
    finished = zip(*(backward.finish() for backward in passes), strict=True)
    owners = ((whole.q, queries), (whole.k, keys), (whole.v, keys))
    grads = [_put_together(like, parts, owner) for parts, (like, owner) in zip(finished, owners, strict=True)]
    attended = sum(backward.pairs_attended for backward in passes)
    return _Found(ways[0].name, grads, passes[0].slope, attended), [backward.slope for backward in passes]


def _put_together(like: Array, shards: Sequence[Array | None], owner: Sharding) -> Array | None:
    """The whole gradient from those of the ranks; None where the pass does not give it."""
    if len(shards) == 1:
        return shards[0]
    whole = np.empty_like(like)
    for rank, shard in enumerate(shards):
        if shard is None:
            return None
        owner.put(whole, shard, rank)
    return whole


def _finite_inputs(operands: Operands) -> tuple[Array, ...]:
    return operands.q, operands.k, operands.v, operands.saved.grad_output


def _given(
    problem: Problem, found: Sequence[_Found], slopes: Sequence[Array], sinks: Sequence[Sinks], *, like: Array
) -> AttentionGradients:
    """One answer from the passes, and from the sums over heads of all ranks."""
    given = query_key_value_of([one.grads for one in found])
    query, key, value = (grad if like.ndim == 4 else grad[0] for grad in given)
    by_piece = {index: part for rank in sinks for index, part in rank.items()}
    sink = sum((by_piece[index] for index in sorted(by_piece)), start=np.zeros(problem.heads.query_heads))
    has_slopes = problem.scoring.alibi_slopes is not None and not problem.reproducible
    return AttentionGradients(
        query,
        key,
        value,
        sink_logits=None if problem.sink_logits is None else sink,
        alibi_slopes=sum(slopes[1:], start=slopes[0]) if has_slopes else None,
        travel=found[0].travel if len(found) == 1 else "both",
        pairs=found[0].pairs,
    )
