"""A ring in this process: its ranks take turns at the same loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ringmpi.backends.base import Backend
from ringmpi.comm.local import LocalRing
from ringmpi.core.partial import Array
from ringmpi.core.problem import Problem
from ringmpi.core.shapes import with_batch
from ringmpi.passes.finite import all_finite
from ringmpi.passes.forward_pass import ForwardPass, ForwardResult, empty_result


def simulated(problem: Problem, arrays: Sequence[Array], backend: Backend) -> tuple[ForwardResult, int]:
    """The forward pass of all ranks: its result in the caller's order, with a batch axis, and the pairs attended to.

    Parameters
    ----------
    arrays : (q, k, v)
        Whole, with or without a batch axis.
    """
    ring = LocalRing(problem.size)
    q, k, v = map(with_batch, arrays)
    pairs = np.stack([problem.work_of(rank).pairs() for rank in range(ring.size)])
    passes = [ForwardPass(problem, rank, backend, pairs[rank], pairs > 0) for rank in range(ring.size)]
    finite = np.full(ring.size, all_finite(k, v))
    loops = []
    for comm, forward in zip(ring.ranks, passes, strict=True):
        forward.adopt(*(problem.keys.select(array, comm.rank) for array in (k, v)))
        loops.append(forward.loop(comm, problem.queries.select(q, comm.rank), finite))
    ring.drive(loops)
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
