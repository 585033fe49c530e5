"""What a checkpoint of a run weighs, how long it takes to write, and how often it pays.

With C seconds a save and M seconds between failures of the job, the work that is lost and the saves that were in vain
cost least where the seconds between two saves are about

    W = sqrt(2 C M)                                                         Young 1974
    W = sqrt(2 C M) (1 + sqrt(C / 2 M) / 3 + (C / 2 M) / 9) - C,  C < 2 M   Daly 2006, eq. 37

A job on N nodes fails N times as often as one node: M = M_node / N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.problem import Problem
from ringmpi.core.record import record_bytes, sums_bytes


@dataclass(frozen=True)
class Keeping:
    """What is known of the machine. disk : bytes per second that all ranks together write; node_mtbf : seconds."""

    disk: float | None = None
    node_mtbf: float | None = None


@dataclass(frozen=True)
class CheckpointPlan:
    """What to keep costs.

    Attributes
    ----------
    rank_bytes : int
        In the forward pass, of the rank with most queries.
    total_bytes : int
        Of all ranks, in the pass that has more to save; two generations are kept, and a third while it is written.
    most_bytes : int
        The same where the run goes on from another layout in a backward pass: then the larger side may have two sums.
    seconds : float or None
        To write them; None where the rate of the disk is not known.
    interval : float or None
        Seconds between two saves that cost least; None where it is not known how often a node fails, or `seconds`.
    """

    rank_bytes: int
    total_bytes: int
    most_bytes: int
    seconds: float | None
    interval: float | None


def plan_checkpoint(problem: Problem, keeping: Keeping, nodes: int, *, gradients: bool) -> CheckpointPlan:
    """The checkpoints of a run on so many nodes; `gradients`: it has a backward pass."""
    largest = max(problem.queries.shard_length(rank) for rank in range(problem.size))
    total = most = forward_bytes(problem, problem.queries.length)
    if gradients:
        total = max(total, backward_bytes(problem))
        most = max(total, backward_bytes(problem) + earlier_bytes(problem))
    seconds = total / keeping.disk if keeping.disk else None
    interval = None
    if seconds is not None and keeping.node_mtbf is not None:
        interval = best_interval(seconds, keeping.node_mtbf / nodes)
    return CheckpointPlan(forward_bytes(problem, largest), total, most, seconds, interval)


def forward_bytes(problem: Problem, rows: int) -> int:
    """Of so many queries: row_max, row_sum and weighted_sum, and the sums of a record."""
    wide = accumulate_dtype(problem.dtype)
    row = (problem.heads.value_dim + 2) * wide.itemsize + (sums_bytes(wide) if problem.record else 0)
    return problem.heads.query_slabs * rows * row


def backward_bytes(problem: Problem) -> int:
    """Of all ranks: what the forward pass gave, and the sums of all gradients, those on their way among them."""
    heads, wide, item = problem.heads, accumulate_dtype(problem.dtype), problem.dtype.itemsize
    row = heads.value_dim * item + wide.itemsize + (record_bytes(wide) if problem.record else 0)
    return heads.query_slabs * problem.queries.length * row + sum(_sum_bytes(problem))


def earlier_bytes(problem: Problem) -> int:
    """The most that runs of other layouts leave beside them: the sums of the side that travels."""
    return max(_sum_bytes(problem)) if problem.schedule.gradients_travel else 0


def _sum_bytes(problem: Problem) -> tuple[int, int]:
    """Gradients in the accumulation dtype: of all queries, and of all keys and values."""
    heads, wide = problem.heads, accumulate_dtype(problem.dtype).itemsize
    keys = heads.batch * heads.key_heads * problem.keys.length
    return (
        heads.query_slabs * problem.queries.length * heads.head_dim * wide,
        keys * (heads.head_dim + heads.value_dim) * wide,
    )


def best_interval(cost: float, mtbf: float) -> float:
    """Seconds from the end of one save to the beginning of the next that cost least.

    Parameters
    ----------
    cost : float
        Seconds of a save, > 0.
    mtbf : float
        Mean seconds between failures of the job, > 0.

    Source
    ------
    Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps", eq. 37; its first term is
    that of Young 1974, "A first order approximation to the optimum checkpoint interval".
    """
    if cost >= 2 * mtbf:
        return mtbf
    part = cost / (2 * mtbf)
    return math.sqrt(2 * cost * mtbf) * (1 + math.sqrt(part) / 3 + part / 9) - cost
