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

from ringmpi.core.schedule import Ints, Piece, Schedule, comes, homes, last_needed

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
    last: Ints | None = None,
) -> Itinerary:
    """The itinerary of `rank`.

    Parameters
    ----------
    needed : bool [size, pieces]
        Whether a rank has any pair with a piece; the same on all ranks.
    donated : bool
        The rank's own pieces lie in slots too, which are used again once the pieces have left.
    last : int64 [pieces], optional
        `last_needed`, where it is known.
    """
    size = len(needed)
    draft = _read(schedule, pieces, needed, rank, last_needed(schedule, pieces, needed) if last is None else last)
    stays = [stay for stay in draft.stays.values() if donated or stay.arrives != AT_HOME]
    slot_of, lengths = assign_slots(stays)
    hops = hops_by_step(draft.sends, draft.receives)
    steps = tuple(Step(index, hops[index], tuple(draft.visits[index])) for index in range(size))
    own = tuple(stay.load for stay in draft.stays.values() if stay.arrives == AT_HOME)
    return Itinerary(rank, steps, slot_of, lengths, own)


def _read(schedule: Schedule, pieces: tuple[Piece, ...], needed: NDArray[np.bool_], rank: int, last: Ints) -> _Draft:
    """Pick this rank's visits, receives and sends out of the whole schedule."""
    size, (owner, direction), draft = len(needed), homes(pieces), _Draft()
    steps = schedule.step(owner, direction, rank, size)
    here = np.flatnonzero(comes(schedule, steps, needed[rank], last))
    here = here[np.argsort(steps[here], kind="stable")]
    come = schedule.visits(owner[here], direction[here], steps[here], size)
    for piece, step, source, sent_at in _rows(here, steps[here], come.source, come.sent_at):
        draft.stays[piece] = Stay(piece, pieces[piece].length, sent_at if step else AT_HOME, step)
        if step:
            draft.receives[sent_at, step].append((piece, source))
        if needed[rank, piece]:
            draft.visits[step].append(piece)
    leaving, due = _leaving(schedule, here[steps[here] < last[here]], steps, (owner, direction), needed)
    go = schedule.visits(owner[leaving], direction[leaving], due, size)
    for piece, arrives, peer, sent_at in _rows(leaving, due, go.rank, go.sent_at):
        draft.sends[sent_at, arrives].append((piece, peer))
        draft.stays[piece].leaves = max(draft.stays[piece].leaves, arrives - 1)
    return draft


def _leaving(
    schedule: Schedule, going: Ints, steps: Ints, home: tuple[Ints, Ints], needed: NDArray[np.bool_]
) -> tuple[Ints, Ints]:
    """Which pieces a rank sends, in ascending order, and when each must have landed. `going`: those needed later."""
    if schedule.hand_to_hand:
        return np.sort(going), steps[np.sort(going)] + 1
    own = np.sort(going[steps[going] == 0])
    nth, peer = np.nonzero(needed[:, own].T)
    piece = own[nth]
    due = schedule.step(home[0][piece], home[1][piece], peer, len(needed))
    return piece[due > 0], due[due > 0]


def _rows(*columns: Ints | int) -> Iterator[tuple[int, ...]]:
    """Columns of numbers, row by row."""
    return zip(*(column.tolist() for column in np.broadcast_arrays(*columns)), strict=True)


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
