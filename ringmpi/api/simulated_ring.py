"""A ring in this process: its ranks take turns at the same loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.base import Backend
from ringmpi.comm.local import LocalRing
from ringmpi.comm.protocol import Communicator, Flight
from ringmpi.core.partial import Array
from ringmpi.core.problem import Problem
from ringmpi.core.rank_work import RankWork
from ringmpi.core.shapes import with_batch
from ringmpi.passes.finite import all_finite
from ringmpi.passes.forward_pass import ForwardPass, ForwardResult, empty_result

Pass = TypeVar("Pass")
Counts = NDArray[np.int64]
Needed = NDArray[np.bool_]


def drive_all(
    pairs: Sequence[Counts],
    make: Callable[[int, Counts, Needed], Pass],
    loop_of: Callable[[Pass, Communicator], Iterator[Flight]],
) -> list[Pass]:
    """Make one pass per rank, and drive the loops of all to their ends; the passes, in ring order.

    Parameters
    ----------
    pairs : sequence of int64 [pieces]
        Of each rank, its pairs with each piece that visits it.
    make : function (rank, pairs, needed) -> pass
        `pairs` of this rank; `needed`, bool [size, pieces]: which rank works on which piece.
    loop_of : function (pass, comm) -> iterator of Flight
        The ring loop over it, with the shards of rank `comm.rank`.
    """
    ring, needed = LocalRing(len(pairs)), np.stack(pairs) > 0
    passes = [make(rank, own, needed) for rank, own in enumerate(pairs)]
    ring.drive([loop_of(one, comm) for one, comm in zip(passes, ring.ranks, strict=True)])
    return passes


def simulated(problem: Problem, arrays: Sequence[Array], backend: Backend) -> tuple[ForwardResult, int]:
    """The forward pass of all ranks: its result in the caller's order, with a batch axis, and the pairs attended to.

    Parameters
    ----------
    arrays : (q, k, v)
        Whole, with or without a batch axis.
    """
    q, k, v = map(with_batch, arrays)
    finite = np.full(problem.size, all_finite(k, v))

    def loop_of(forward: ForwardPass, comm: Communicator) -> Iterator[Flight]:
        forward.adopt(*(problem.keys.select(array, comm.rank) for array in (k, v)))
        return forward.loop(comm, problem.queries.select(q, comm.rank), finite)

    passes = drive_all(
        [RankWork(problem, rank).pairs() for rank in range(problem.size)],
        lambda rank, pairs, needed: ForwardPass(problem, rank, backend, pairs, needed),
        loop_of,
    )
    return _whole(problem, passes), sum(forward.pairs_attended for forward in passes)


def _whole(problem: Problem, passes: Sequence[ForwardPass]) -> ForwardResult:
    """The rows of all ranks in the caller's order; those of a rank that is alone lie so."""
    if len(passes) == 1:
        return passes[0].finish()
    whole = empty_result(problem, problem.queries.length)
    for rank, forward in enumerate(passes):
        for array, shard in zip(whole.arrays, forward.finish().arrays, strict=True):
            problem.queries.put(array, shard, rank)
    return whole
