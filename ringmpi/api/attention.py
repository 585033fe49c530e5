"""The public functions: exact attention in this process, and over the ranks of a ring.

Arrays are `[heads, length, head_dim]`, or with a leading batch axis (core/shapes.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from numpy.typing import ArrayLike, NDArray

from ringmpi.api.arguments import checked_arrays, recording_of, shard_problem, warn_of_doubts, whole_problem
from ringmpi.api.device_arrays import as_given
from ringmpi.api.simulated_ring import simulated
from ringmpi.backends import get_backend
from ringmpi.backends.base import Backend
from ringmpi.comm.agreement import together
from ringmpi.core.dtypes import wide_dtype
from ringmpi.core.masking import Mask
from ringmpi.core.printed import Printed
from ringmpi.core.problem import Problem
from ringmpi.core.record import Record, Recording
from ringmpi.core.reference import dense_attention
from ringmpi.core.shapes import with_batch
from ringmpi.core.sharding import Sharding
from ringmpi.passes.finite import share_finite
from ringmpi.passes.forward_pass import ForwardResult, agree_on_forward
from ringmpi.process.cores import threads_alone
from ringmpi.ring import Ring

Array = NDArray[Any]


@dataclass(frozen=True, repr=False)
class Attention(Printed):
    """What attention gives.

    output        [(batch,) query_heads, queries, value_dim]  input dtype; 0 where a query sees no key
    log_sum_exp   [(batch,) query_heads, queries]             float32 (float64 for float64), natural log; -inf there
    pairs         (query, key) pairs that the kernels counted, over batch and query heads; of this rank in a ring
    meaning       hash of mask, scores and heads: a backward pass with different ones is refused
    record        what rows say about their weights, if requested (core/record.py)
    """

    output: Array
    log_sum_exp: Array
    pairs: int
    meaning: str = field(repr=False)
    record: Record | None = None

    def moved(self, move: Callable[[Array], Array]) -> Attention:
        """The same, each array as `move` gives it."""
        return replace(self, output=move(self.output), log_sum_exp=move(self.log_sum_exp))


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
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
    reproducible: bool = False,
    record: bool | Recording = False,
    backend: str = "auto",
) -> Attention:
    """Exact attention to whole arrays, in this process; `ranks` > 1 drives a simulated ring, the same code as on MPI.

    Parameters
    ----------
    q : array [(batch,) query_heads, queries, head_dim]
    k : array [(batch,) key_heads, keys, head_dim]
    v : array [(batch,) key_heads, keys, value_dim]
        One dtype: float16, bfloat16, float32 or float64. query_heads must be a multiple of key_heads. NumPy arrays, or
        arrays on a GPU (CuPy; what has the CUDA array interface, or DLPack): then results are CuPy arrays.
    mask : Mask, optional
        Default: full.
    scale : float, optional
        Factor on q . k; default 1 / sqrt(head_dim).
    softcap, sink_logits, alibi_slopes : optional
        See `Scoring`; sink_logits and alibi_slopes hold one number per query head. A sink logit adds e^logit to the
        normaliser of every row, with value 0.
    dropout, seed : optional
        Drop each pair with this chance after the softmax, 0 <= dropout < 1. Which pairs: a function of seed (0 <= seed
        < 2^64), batch, head and positions alone (core/dropout.py), so the same for any ranks, sharding and backend.
    ranks : int
        Simulated ranks.
    sharding : str or Sharding
        A name ("contiguous", "zigzag", "striped", "balanced", "auto") applies to queries and keys, each at its own
        length; a Sharding is that of the queries.
    key_sharding : Sharding, optional
        Default: the sharding of the queries.
    schedule : str
        "ring", "bidirectional", "all-gather" or "broadcast"; "auto" is the ring, or with `reproducible` the broadcast.
    reproducible : bool
        Output, log_sum_exp and gradients have the same bits on any number of ranks, for any sharding of whole blocks.
        A sharding by name has blocks of 512 positions; others must be made with `block`, the same on all rank counts.
    record : bool or Recording
        Record of each row, in the same pass: entropy, distance, largest score and its key, weight on the first keys.
    backend : str
        "cuda", "native", "numpy" or "auto": cuda where there is a GPU for it, else native, and numpy where the native
        kernels are not built.

    Returns
    -------
    Attention
        In the caller's order, whatever the sharding.

    Raises
    ------
    ShapeError, MaskError, BackendError
        If arrays, mask and options do not fit together; the message says what to do.

    Warns
    -----
    UserWarning
        About what can be computed but is hardly meant: swapped axes, a mask without pairs, ranks without rows.

    Source
    ------
    Liu, Zaharia, Abbeel 2023, "Ring attention with blockwise transformers for near-infinite context", Algorithm 1.
    """
    given = as_given(query=q, key=k, value=v)
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
        record=recording_of(record),
    )
    warn_of_doubts(problem)
    kernel = get_backend(
        backend, threads=threads_alone(), reproducible=reproducible, records=problem.record is not None
    )
    result, pairs = simulated(problem, arrays, kernel)
    del kernel  # with its memory of a GPU, where the result may have to go
    return _given(problem, result, pairs, like=arrays[0]).moved(given)


def ring_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    ring: Ring,
    sharding: Sharding,
    key_sharding: Sharding | None = None,
    mask: Mask | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    schedule: str = "auto",
    reproducible: bool = False,
    record: bool | Recording = False,
    backend: str = "auto",
) -> Attention:
    """Exact attention of this rank's queries to the keys of all ranks. Collective.

    Every rank of `ring` must call this with the same options and its own shards, `sharding.take(q, ring)`. The
    arrays are read, never written; none is read after the return.

    Parameters
    ----------
    q, k, v : array
        This rank's shards, shapes and dtypes as in `attention`.
    ring : Ring
    sharding, key_sharding : Sharding
        Who owns which queries and keys; key_sharding defaults to `sharding`.
    mask, scale, softcap, sink_logits, alibi_slopes, dropout, seed, schedule, reproducible, record, backend : optional
        As in `attention`. Masks refer to positions in the whole sequence.

    Returns
    -------
    Attention
        Of this rank's queries.

    Raises
    ------
    ShapeError, MaskError, BackendError, RingError
        On all ranks, if anything does not fit on any, or if the ranks disagree.

    Warns
    -----
    UserWarning
        On rank 0, as `attention` does.
    """

    def prepare() -> tuple[Problem, list[Array], Backend, Callable[[Array], Array]]:
        given = as_given(query=q, key=k, value=v)
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
            record=recording_of(record),
        )
        kernel = ring.backend(backend, reproducible=reproducible, records=problem.record is not None)
        return problem, arrays, kernel, given

    with ring.call("ring_attention") as transport:
        problem, arrays, kernel, given = together(transport, "checking the arguments", prepare, checks=True)
        forward = agree_on_forward(transport, problem, kernel)
        query, key, value = map(with_batch, arrays)
        finite = share_finite(transport, [key, value])
        together(transport, "allocating memory", partial(forward.adopt, key, value))
        transport.drive(forward.loop(transport, query, finite), forward.timeline.where)
        result = together(transport, "finishing the pass", forward.finish)
    if ring.rank == 0:
        warn_of_doubts(problem)  # here, where nobody waits for rank 0: warnings may be errors
    found = _given(problem, result, forward.pairs_attended, like=arrays[0])
    del kernel, forward  # with their memory of a GPU, where the result may have to go
    return found.moved(given)


def attention_reference(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink_logits: ArrayLike | None = None,
    alibi_slopes: ArrayLike | None = None,
    dropout: float = 0.0,
    seed: int = 0,
) -> Attention:
    """The plain formula in a wider dtype (float64; longdouble for float64), for small lengths: O(queries x keys) time.

    Parameters are those of `attention`. Returns an Attention whose arrays are in the wider dtype.
    """
    arrays = checked_arrays(query=q, key=k, value=v)
    problem = whole_problem(
        arrays,
        mask=mask,
        ranks=1,
        shardings=("contiguous", None),
        schedule="auto",
        scale=scale,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sink_logits=sink_logits,
        dropout=dropout,
        seed=seed,
    )
    query, key, value = map(with_batch, arrays)
    allowed = problem.mask.allowed(problem.queries.length, problem.keys.length)
    pairs = int(allowed.sum()) * problem.heads.query_slabs
    output, log_sum_exp = dense_attention(
        query,
        key,
        value,
        allowed,
        problem.scoring,
        sink_logits=problem.sink_logits,
        dtype=wide_dtype(problem.dtype),
    )
    return _given(problem, ForwardResult(output, log_sum_exp, None), pairs, like=arrays[0])


def _given(problem: Problem, result: ForwardResult, pairs: int, *, like: Array) -> Attention:
    """With a batch axis where the caller's arrays have one."""
    output, log_sum_exp, record = result
    if like.ndim == 3:
        output, log_sum_exp = output[0], log_sum_exp[0]
        record = record and Record(*(array[0] for array in record.arrays))
    return Attention(output, log_sum_exp, pairs, problem.meaning(), record)
