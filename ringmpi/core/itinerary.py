"""One rank's pass, step by step: what it attends to, what it sends and receives, and in which slot it keeps it.

All of it is derived from the schedule (core/schedule.py) and from who needs what; nothing here is communicated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.schedule import Ints, Piece, Route, Schedule, distances, plan_route

PIECES, GRADIENTS = "pieces", "gradients"
AT_HOME = -1  # "sent_at" of a piece that its owner holds from the start

Transfers = dict[tuple[int, int], list[tuple[int, int]]]  # (leaves at, due) -> (load, peer)


@dataclass(frozen=True)
class Hop:
    """Messages that leave at one step and must have landed when step `due` begins. Both ends list them in one order.

    sends, receives : tuple of (load, peer)
        A load is a piece, or a sum of gradients of one (core/gradient_routes.py), as `cargo` says.
    """

    due: int
    sends: tuple[tuple[int, int], ...]
    receives: tuple[tuple[int, int], ...]
    cargo: str = PIECES


@dataclass(frozen=True)
class Step:
    """One ring step: hops that start with it, then pieces that are attended to."""

    index: int
    hops: tuple[Hop, ...]
    visits: tuple[int, ...]


@dataclass(frozen=True)
class Itinerary:
    """The pass of one rank.

    Attributes
    ----------
    steps : tuple of Step
        Equally many on every rank: as many as there are ranks, or somewhat more than there are blocks.
    slot_of : dict
        Piece -> slot, for pieces that this rank receives (and for its own, if they were donated).
    slot_lengths : tuple of int
        Positions that each slot must hold.
    own : tuple of int
        This rank's own pieces that it attends to or sends.
    """

    rank: int
    steps: tuple[Step, ...]
    slot_of: dict[int, int]
    slot_lengths: tuple[int, ...]
    own: tuple[int, ...]

    def is_packed(self, index: int, piece: Piece, shard: int) -> bool:
        """Whether a piece of its own, of a shard of so many positions, must be copied to be contiguous.

        All of a shard lies as it should. A part of it does not, since heads come first; but what is not sent may be
        a view, if it is one range.
        """
        return piece.length != shard and (index in self._sent or len(piece.ranges) > 1)

    @cached_property
    def _sent(self) -> frozenset[int]:
        return frozenset(
            load for step in self.steps for hop in step.hops if hop.cargo == PIECES for load, _ in hop.sends
        )


@dataclass
class Stay:
    """When a load arrives at a rank, and until when it is in use there."""

    load: int
    length: int
    arrives: int
    leaves: int = AT_HOME


@dataclass
class _Draft:
    """What is known of each step while the schedule is read."""

    visits: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    sends: Transfers = field(default_factory=lambda: defaultdict(list))
    receives: Transfers = field(default_factory=lambda: defaultdict(list))
    stays: dict[int, Stay] = field(default_factory=dict)


def plan_itinerary(
    schedule: Schedule,
    pieces: tuple[Piece, ...],
    needed: NDArray[np.bool_],
    rank: int,
    *,
    donated: bool = False,
    route: Route | None = None,
) -> Itinerary:
    """The itinerary of `rank`.

    Parameters
    ----------
    needed : bool [size, pieces]
        Whether a rank has any pair with a piece; the same on all ranks.
    donated : bool
        The rank's own pieces lie in slots too, which are used again once the pieces have left.
    route : Route, optional
        `plan_route`, where it is known.
    """
    route = plan_route(schedule, pieces, needed) if route is None else route
    draft = _read(route, pieces, needed, rank)
    stays = [stay for stay in draft.stays.values() if donated or stay.arrives != AT_HOME]
    slot_of, lengths = assign_slots(stays)
    hops = hops_by_step(draft.sends, draft.receives)
    steps = tuple(Step(index, hops[index], tuple(draft.visits[index])) for index in range(route.steps))
    own = tuple(stay.load for stay in draft.stays.values() if stay.arrives == AT_HOME)
    return Itinerary(rank, steps, slot_of, lengths, own)


def _read(route: Route, pieces: tuple[Piece, ...], needed: NDArray[np.bool_], rank: int) -> _Draft:
    """Pick this rank's visits, receives and sends out of the ways of all pieces."""
    draft, distance = _Draft(), route.distance(rank)
    here = np.flatnonzero(route.comes(distance, needed[rank]))
    come = route.visits(here, distance[here])
    order = np.argsort(come.step, kind="stable")
    for piece, far, source, sent_at, due, step in _rows(*(column[order] for column in (here, distance[here], *come))):
        in_use = step if needed[rank, piece] else due if far else AT_HOME
        draft.stays[piece] = Stay(piece, pieces[piece].length, sent_at if far else AT_HOME, in_use)
        if far:
            draft.receives[sent_at, due].append((piece, source))
        if needed[rank, piece]:
            draft.visits[step].append(piece)
    leaving, far_off = _leaving(route, here, distance, needed)
    go = route.visits(leaving, far_off)
    for piece, peer, sent_at, due in _rows(leaving, route.rank_at(leaving, far_off), go.sent_at, go.due):
        draft.sends[sent_at, due].append((piece, peer))
        draft.stays[piece].leaves = max(draft.stays[piece].leaves, due - 1)
    return draft


def _leaving(route: Route, here: Ints, distance: Ints, needed: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Which pieces a rank sends, in ascending order, and at what distance from their owners those are who get them."""
    going = here[distance[here] < route.last[here]]
    if route.schedule.hand_to_hand:
        return going, distance[going] + 1
    own = going[distance[going] == 0]
    nth, peer = np.nonzero(needed[:, own].T)
    far_off = distances(route.owner[own[nth]], route.direction[own[nth]], peer, route.size)
    return own[nth][far_off > 0], far_off[far_off > 0]


def _rows(*columns: Ints) -> Iterator[tuple[int, ...]]:
    """Columns of numbers, row by row."""
    return zip(*(column.tolist() for column in columns), strict=True)


def hops_by_step(sends: Transfers, receives: Transfers, cargo: str = PIECES) -> dict[int, tuple[Hop, ...]]:
    """The hops that leave at each step, from transfers listed by (step at which they leave, step when they are due)."""
    hops: dict[int, tuple[Hop, ...]] = defaultdict(tuple)
    for sent_at, due in sorted({*sends, *receives}):
        hop = Hop(due, tuple(sends.get((sent_at, due), ())), tuple(receives.get((sent_at, due), ())), cargo)
        hops[sent_at] += (hop,)
    return hops


def assign_slots(stays: list[Stay]) -> tuple[dict[int, int], tuple[int, ...]]:
    """Give each load a slot that is free while it stays; the fewest slots, and among free ones the best fit."""
    slot_of: dict[int, int] = {}
    lengths: list[int] = []
    free_from: list[int] = []
    for stay in sorted(stays, key=lambda stay: (stay.arrives, -stay.length)):
        free = [slot for slot in range(len(lengths)) if free_from[slot] <= stay.arrives]
        if not free:
            free = [len(lengths)]
            lengths.append(0)
            free_from.append(AT_HOME)
        slot = min(free, key=lambda slot: (lengths[slot] < stay.length, abs(lengths[slot] - stay.length)))
        slot_of[stay.load], lengths[slot], free_from[slot] = slot, max(lengths[slot], stay.length), stay.leaves + 1
    return slot_of, tuple(lengths)
