"""How long a pass takes: flops over F, bytes over B, and what of the bytes hides behind the flops.

A rank with c queries that meets n keys of a visiting shard computes 2 (head_dim + value_dim) flops a pair and query
head, and meanwhile receives n (head_dim + value_dim) numbers a key head. The keys cancel: the hop is hidden when

    c >= (bytes / 2) (key_heads / query_heads) (1 / density) F / B

with `bytes` a number and `density` the share of pairs that the mask allows. For 16-bit numbers, as many key heads as
query heads and no mask this is c >= F / B (Liu, Zaharia, Abbeel 2023, section 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.problem import Problem
from ringmpi.core.shapes import HeadShape
from ringmpi.planner.balance import Ints, PassTables
from ringmpi.planner.machines import Rates

Seconds = NDArray[np.float64]
STEPS_AT_ONCE = 64


def flops_a_pair(heads: HeadShape) -> int:
    """Of one query position and one key position, over batch and query heads: q . k, and its weight times v."""
    return 2 * (heads.head_dim + heads.value_dim) * heads.query_slabs


def critical_block_length(
    rates: Rates, *, itemsize: int = 2, query_heads: int = 1, key_heads: int = 1, density: float = 1.0
) -> float:
    """Queries per rank from which on a hop hides behind the work; infinite where there is no work to hide behind."""
    if density == 0:
        return float("inf")
    return itemsize / 2 * key_heads / query_heads / density * rates.flops / rates.bandwidth


@dataclass(frozen=True)
class Times:
    """Predicted seconds. Reading, writing and starting are not in them.

    attend   [steps]  in kernels, on the rank where it is most
    hop      [steps]  until the keys for this step have landed, on the rank that receives most
    exposed  [steps]  of that, what the work of the busiest rank does not hide
    total    of the slowest rank, waiting included
    """

    attend: Seconds
    hop: Seconds
    exposed: Seconds
    total: float


class Hops(Protocol):
    """What knows how long hops take."""

    def seconds(self, step: int, sent_at: int, arriving: Sequence[Ints]) -> Seconds:
        """From when both ends have come to a hop until it has landed, [directions, ranks].

        Parameters
        ----------
        step, sent_at : int
            The hops are due before `step`, and left with step `sent_at`.
        arriving : sequence of int64 [ranks]
            Bytes that come to each rank, for each direction.
        """


@dataclass(frozen=True)
class FlatHops:
    """Every rank receives `bandwidth` bytes per second, whoever sends; hops that left together arrive one by one."""

    bandwidth: float

    def seconds(self, step: int, sent_at: int, arriving: Sequence[Ints]) -> Seconds:
        """As `Hops`: the same for all directions."""
        hops = np.sum(arriving, axis=0) * ((step - sent_at) / self.bandwidth)
        return np.tile(hops, (len(arriving), 1))


def pass_times(problem: Problem, tables: PassTables, rates: Rates, hops: Hops | None = None) -> Times:
    """Time a pass, step by step over all ranks.

    A rank starts a step when it has finished the one before and its hop has landed. A hop starts when both ends have
    come to it. `hops` says how long it takes; by default all bytes come with the bandwidth of `rates`.
    """
    hops = FlatHops(rates.bandwidth) if hops is None else hops
    second_a_pair = flops_a_pair(problem.heads) / rates.flops
    attend, hop = np.zeros((2, tables.steps))
    left_at = np.zeros(tables.steps, np.int64)
    starts: list[Seconds] = []
    ends: Any = np.zeros(problem.size)
    for step, pairs, arriving in arriving_by_step(tables, len(problem.schedule.directions)):
        start = ends
        if any(due.any() for due in arriving):
            sent_at, ways = senders(problem, step)
            left_at[step] = sent_at
            seconds = hops.seconds(step, sent_at, arriving) * (np.array(arriving) > 0)
            hop[step], start = seconds.max(), ends.copy()
            for (source, rank), due, taken in zip(ways, arriving, seconds, strict=True):
                left = np.maximum(starts[sent_at][source], starts[sent_at][rank])
                lands = np.where(due[rank] > 0, left + taken[rank], 0)
                for end in (source, rank):
                    start[end] = np.maximum(start[end], lands)
        attend[step] = pairs.max() * second_a_pair
        starts.append(start)
        ends = start + pairs * second_a_pair
    return Times(attend, hop, _exposed(attend, hop, left_at), float(ends.max(initial=0.0)))


def senders(problem: Problem, step: int) -> tuple[int, list[tuple[Ints, Ints]]]:
    """When the hops left that are due now; and, for each direction, who sends to whom."""
    source, schedule = np.arange(problem.size), problem.schedule
    sent_at, apart = (step - 1, 1) if schedule.hand_to_hand else (0, step)
    return sent_at, [(source, (source + way * apart) % problem.size) for way in schedule.directions]


def _exposed(attend: Seconds, hop: Seconds, left_at: Ints) -> Seconds:
    """What the hops take longer than the work since they left, if all ranks were as busy as the busiest."""
    exposed, starts, end = np.zeros_like(hop), [0.0], float(attend[0])
    for step in range(1, len(hop)):
        exposed[step] = max(starts[left_at[step]] + hop[step] - end, 0)
        starts.append(end + exposed[step])
        end = starts[-1] + float(attend[step])
    return exposed


def arriving_by_step(tables: PassTables, directions: int) -> Iterator[tuple[int, Ints, tuple[Ints, ...]]]:
    """Step, pairs, and bytes due for each direction, of all ranks.

    The tables lie rank by rank: a few steps are turned at a time.
    """
    for first in range(0, len(tables.pieces_due), STEPS_AT_ONCE):
        some = slice(first, first + STEPS_AT_ONCE)
        pairs, due = (np.ascontiguousarray(table[:, some].T) for table in (tables.pairs, tables.bytes_due))
        if directions == 1:
            parts: tuple[Ints, ...] = (due,)
        else:
            back = due // 2 if tables.bytes_back is None else np.ascontiguousarray(tables.bytes_back[:, some].T)
            parts = (due - back, back)
        for nth in range(len(pairs)):
            yield first + nth, pairs[nth], tuple(part[nth] for part in parts)
