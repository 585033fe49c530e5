"""The way of gradients: they follow the piece that they belong to one step behind, and come home to its owner.

A rank that works on a piece makes fresh gradients for it, while the sum of those who worked on it before is still on
its way. When that has landed the two are added. The new sum leaves when the next rank works on the piece, not sooner:
a rank that works on all pieces then receives their sums one by one, in one slot. The last sum goes home at once. So a
piece that meets all P ranks has P gradient hops, and the pass one step more than the forward one, without work.

In a broadcast all ranks work on a piece at once, and no gradients travel (passes/travel.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.itinerary import AT_HOME, GRADIENTS, Hop, Itinerary, Stay, Step, Transfers, assign_slots, hops_by_step
from ringmpi.core.schedule import Piece, Schedule, plan_route


def made(piece: int) -> int:
    """Load: the sum of gradients of a piece that this rank makes and passes on."""
    return 2 * piece


def arrived(piece: int) -> int:
    """Load: the sum that comes from those who worked on the piece before."""
    return 2 * piece + 1


@dataclass(frozen=True)
class Leg:
    """A sum of gradients on its way from one worker to the next, or home (`last`)."""

    piece: int
    source: int
    target: int
    leaves: int
    due: int
    last: bool


@dataclass(frozen=True)
class GradientPlan:
    """What one rank does with gradients.

    Attributes
    ----------
    hops : dict
        Step -> hops that leave with it.
    slot_of, slot_lengths
        As in `Itinerary`, for the loads `made` and `arrived`.
    additions : dict
        Step -> pieces whose arrived sum is to be added to the one made here, once all due after the step has landed.
    home : dict
        Own piece -> load in which its gradients are, after the pass; missing: nobody worked on it, they are 0.
    kept : dict
        Load -> the steps at whose end the load is on this rank, whole, and goes nowhere: at the end of any step all
        loads of all ranks that are kept then are together the gradients of the work until then.
    """

    hops: dict[int, tuple[Hop, ...]]
    slot_of: dict[int, int]
    slot_lengths: tuple[int, ...]
    additions: dict[int, tuple[int, ...]]
    home: dict[int, int]
    kept: dict[int, range]


NO_GRADIENTS = GradientPlan({}, {}, (), {}, {}, {})


def plan_gradients(schedule: Schedule, pieces: tuple[Piece, ...], needed: NDArray[np.bool_], rank: int) -> GradientPlan:
    """The gradients of one rank; `needed` bool [size, pieces]: who works on what, the same on all ranks."""
    sends: Transfers = defaultdict(list)
    receives: Transfers = defaultdict(list)
    stays: dict[int, Stay] = {}
    additions: dict[int, tuple[int, ...]] = defaultdict(tuple)
    home: dict[int, int] = {}
    kept: dict[int, range] = {}
    to_the_end = len(needed) + 1
    for piece, workers in enumerate(_workers(schedule, pieces, needed)):
        length, owner = pieces[piece].length, pieces[piece].owner
        for step, worker in workers:
            if worker == rank:
                stays[made(piece)] = Stay(made(piece), length, step, to_the_end)
                kept[made(piece)] = range(step, to_the_end)
                if len(workers) == 1 and owner == rank:
                    home[piece] = made(piece)
        for leg in _legs(piece, workers, owner):
            if leg.source == rank:
                sends[leg.leaves, leg.due].append((made(piece), leg.target))
                stays[made(piece)].leaves = leg.due - 1
                kept[made(piece)] = range(kept[made(piece)].start, leg.leaves)
            if leg.target == rank:
                receives[leg.leaves, leg.due].append((arrived(piece), leg.source))
                stays[arrived(piece)] = Stay(
                    arrived(piece), length, leg.leaves, to_the_end if leg.last else leg.due - 1
                )
                if leg.last:
                    home[piece] = arrived(piece)
                    kept[arrived(piece)] = range(leg.leaves, to_the_end)
                else:
                    additions[leg.due - 1] += (piece,)
    slot_of, lengths = assign_slots(list(stays.values()))
    return GradientPlan(hops_by_step(sends, receives, GRADIENTS), slot_of, lengths, additions, home, kept)


def plan_after(plan: GradientPlan, step: int) -> GradientPlan:
    """What is left of a plan after a step; the loads that are kept then must be put back into their slots."""
    hops = {leaves: some for leaves, some in plan.hops.items() if leaves > step}
    additions = {at: pieces for at, pieces in plan.additions.items() if at > step}
    return replace(plan, hops=hops, additions=additions)


def follow(itinerary: Itinerary, plan: GradientPlan, *, after: int = AT_HOME) -> Itinerary:
    """The itinerary of the pieces with the hops of their gradients, and the step that takes the last ones home.

    after : the last step whose work has been done: up to it pieces travel, to be where they were, and no more.
    """
    steps = (*itinerary.steps, Step(len(itinerary.steps), (), ()))
    return replace(
        itinerary,
        steps=tuple(
            replace(
                step,
                hops=step.hops + plan.hops.get(step.index, ()),
                visits=step.visits if step.index > after else (),
            )
            for step in steps
        ),
    )


def gradient_legs(schedule: Schedule, pieces: tuple[Piece, ...], needed: NDArray[np.bool_]) -> Iterator[Leg]:
    """The ways of all gradients, over all ranks."""
    for piece, workers in enumerate(_workers(schedule, pieces, needed)):
        yield from _legs(piece, workers, pieces[piece].owner)


def _workers(schedule: Schedule, pieces: tuple[Piece, ...], needed: NDArray[np.bool_]) -> list[list[tuple[int, int]]]:
    """(step, rank) of those who work on each piece, in the order in which they meet it."""
    route, every = plan_route(schedule, pieces, needed), np.arange(len(pieces))
    workers: list[list[tuple[int, int]]] = [[] for _ in pieces]
    for step in range(len(needed)):
        at = route.rank_at(every, step)
        for piece in np.flatnonzero(needed[at, every]).tolist():
            workers[piece].append((step, int(at[piece])))
    return workers


def _legs(piece: int, workers: list[tuple[int, int]], owner: int) -> list[Leg]:
    """From worker to worker and home; none where the owner alone has worked."""
    legs = [
        Leg(piece, source, target, later, later + 1, last=False)
        for (_, source), (later, target) in zip(workers, workers[1:], strict=False)
    ]
    if workers and workers[-1][1] != owner:
        step, source = workers[-1]
        legs.append(Leg(piece, source, owner, step + 1, step + 2, last=True))
    return legs
