"""When each rank meets each piece of the keys: the one file that knows schedules.

A schedule is data. A piece visits one rank a ring step, and `Visits` says which, for all pieces at once:

    rank     attends to the piece in this step
    source   sent it (for step 0: nobody, the rank owns it)
    sent_at  the step at whose start the message left

Sends, receives, slots and bytes follow from that (core/itinerary.py); no schedule has a loop of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.sharding import Sharding
from ringmpi.errors import ShapeError

Ints = NDArray[np.int64]
RANGES_APART = 4  # a shard of more ranges travels as one piece: many small messages cost more than pruning saves


class Visits(NamedTuple):
    """Where all pieces are in one step."""

    rank: Ints
    source: Ints
    sent_at: int


@dataclass(frozen=True)
class Piece:
    """What travels: some positions of one rank's keys.

    Attributes
    ----------
    owner : int
        Ring position that holds these keys.
    direction : int
        +1 travels to higher ring positions, -1 to lower ones.
    ranges : tuple of range
        Global positions.
    starts : tuple of int
        Local index of the first of each range in the owner's shard.
    """

    owner: int
    direction: int
    ranges: tuple[range, ...]
    starts: tuple[int, ...]

    @property
    def length(self) -> int:
        """Number of positions."""
        return sum(map(len, self.ranges))


@dataclass(frozen=True)
class Schedule:
    """A way round. `visits(owner, direction, step, size)` holds for steps 0 to size - 1; step 0 is at home."""

    name: str
    directions: tuple[int, ...]
    visits: Callable[[Ints, Ints, int, int], Visits]


def _around(owner: Ints, direction: Ints, step: int, size: int) -> Visits:
    """Hand to hand: rank r meets piece (r - s) mod P in step s (Liu et al. 2023, Algorithm 1)."""
    return Visits((owner + direction * step) % size, (owner + direction * (step - 1)) % size, step - 1)


def _from_owner(owner: Ints, direction: Ints, step: int, size: int) -> Visits:
    """Every piece straight from its owner, all sent at once: one burst, O(N) memory, the same volume."""
    return Visits((owner + direction * step) % size, owner, 0)


SCHEDULES = {
    schedule.name: schedule
    for schedule in (
        Schedule("ring", (+1,), _around),
        Schedule("bidirectional", (+1, -1), _around),
        Schedule("all-gather", (+1,), _from_owner),
    )
}


def schedule_by_name(name: str) -> Schedule:
    """The schedule of this name; ShapeError lists the known ones."""
    if name not in SCHEDULES:
        raise ShapeError(f"schedule {name!r} is not known; known are {', '.join(SCHEDULES)}.")
    return SCHEDULES[name]


def cut_pieces(sharding: Sharding, schedule: Schedule) -> tuple[Piece, ...]:
    """The pieces of all shards: each range of a shard, and of each range a part for every direction."""
    pieces = []
    for owner, shard in enumerate(sharding.shards):
        starts = np.cumsum([0, *map(len, shard)]).tolist()[: len(shard)]
        groups = [[n] for n in range(len(shard))] if len(shard) <= RANGES_APART else [range(len(shard))]
        for group in groups:
            for nth, direction in enumerate(schedule.directions):
                cut = [_part(shard[n], nth, len(schedule.directions)) for n in group]
                local = tuple(starts[n] + start for n, (_, start) in zip(group, cut, strict=True))
                pieces.append(Piece(owner, direction, tuple(part for part, _ in cut), local))
    return tuple(pieces)


def _part(whole: range, nth: int, parts: int) -> tuple[range, int]:
    """The nth of equal parts of a range, and the index where it starts."""
    start = len(whole) * nth // parts
    return whole[start : len(whole) * (nth + 1) // parts], start


def homes(pieces: tuple[Piece, ...]) -> tuple[Ints, Ints]:
    """Owner and direction of all pieces, as arrays: what `Schedule.visits` takes."""
    owner = np.array([piece.owner for piece in pieces], np.int64)
    return owner, np.array([piece.direction for piece in pieces], np.int64)


def prune(schedule: Schedule, pieces: tuple[Piece, ...], needed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which visits take place: a piece goes to a rank that needs it, or from which somebody who needs it gets it.

    Parameters
    ----------
    needed : bool [size, pieces]
        Whether the mask gives a rank any pair with a piece.

    Returns
    -------
    bool [size, pieces]
    """
    kept, every, home = needed.copy(), np.arange(len(pieces)), homes(pieces)
    for step in range(len(needed) - 1, 0, -1):
        rank, source, _ = schedule.visits(*home, step, len(needed))
        kept[source, every] |= kept[rank, every]
    return kept
