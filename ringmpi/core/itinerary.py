"""One rank's pass, step by step: what it attends to, what it sends and receives, and in which slot it keeps it.

All of it is derived from the schedule (core/schedule.py) and from who needs what; nothing here is communicated.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.schedule import Piece, Schedule, homes, prune

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
        As many as there are ranks, on every rank.
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
    schedule: Schedule, pieces: tuple[Piece, ...], needed: NDArray[np.bool_], rank: int, *, donated: bool = False
) -> Itinerary:
    """The itinerary of `rank`.

    Parameters
    ----------
    needed : bool [size, pieces]
        Whether a rank has any pair with a piece; the same on all ranks.
    donated : bool
        The rank's own pieces lie in slots too, which are used again once the pieces have left.
    """
    size = len(needed)
    draft = _read(schedule, pieces, needed, rank)
    stays = [stay for stay in draft.stays.values() if donated or stay.arrives != AT_HOME]
    slot_of, lengths = assign_slots(stays)
    hops = hops_by_step(draft.sends, draft.receives)
    steps = [Step(index, hops[index], tuple(draft.visits[index])) for index in range(size)]
    own = tuple(stay.load for stay in draft.stays.values() if stay.arrives == AT_HOME)
    return Itinerary(rank, tuple(steps), slot_of, lengths, own)


def _read(schedule: Schedule, pieces: tuple[Piece, ...], needed: NDArray[np.bool_], rank: int) -> _Draft:
    """Pick this rank's visits, receives and sends out of the whole schedule."""
    kept, every, home, draft = prune(schedule, pieces, needed), np.arange(len(pieces)), homes(pieces), _Draft()
    for step in range(len(needed)):
        at, source, sent_at = schedule.visits(*home, step, len(needed))
        alive = kept[at, every]
        for piece in np.flatnonzero(alive & (at == rank)).tolist():
            draft.stays[piece] = Stay(piece, pieces[piece].length, sent_at if step else AT_HOME, step)
            if step:
                draft.receives[sent_at, step].append((piece, int(source[piece])))
            if needed[rank, piece]:
                draft.visits[step].append(piece)
        if step:
            for piece in np.flatnonzero(alive & (source == rank)).tolist():
                draft.sends[sent_at, step].append((piece, int(at[piece])))
                draft.stays[piece].leaves = max(draft.stays[piece].leaves, step - 1)
    return draft


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
