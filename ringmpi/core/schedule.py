"""When each rank meets each piece of the keys: the one file that knows schedules.

A schedule is data. A piece visits one rank a ring step, and `Visits` says which, for all pieces at once:

    rank     attends to the piece in this step
    source   sent it (for step 0: nobody, the rank owns it)
    sent_at  the step at whose start the message left

A piece travels only as far as somebody needs it. Sends, receives, slots and bytes follow from that
(core/itinerary.py); no schedule has a loop of its own.
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
    sent_at: Ints | int


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
    """A way round. Arrays are broadcast against each other; step 0 is at home.

    Attributes
    ----------
    visits : function (owner, direction, step, size) -> Visits
        Where pieces are in steps 0 to size - 1.
    step : function (owner, direction, rank, size) -> int64
        The inverse: when pieces visit a rank.
    hand_to_hand : bool
        Every visit is sent by the one before it. Otherwise every one is sent by the owner.
    """

    name: str
    directions: tuple[int, ...]
    visits: Callable[[Ints, Ints, Ints | int, int], Visits]
    step: Callable[[Ints, Ints, Ints | int, int], Ints]
    hand_to_hand: bool


def _around(owner: Ints, direction: Ints, step: Ints | int, size: int) -> Visits:
    """Hand to hand: rank r meets piece (r - s) mod P in step s (Liu et al. 2023, Algorithm 1)."""
    return Visits((owner + direction * step) % size, (owner + direction * (step - 1)) % size, step - 1)


def _from_owner(owner: Ints, direction: Ints, step: Ints | int, size: int) -> Visits:
    """Every piece straight from its owner, all sent at once: one burst, O(N) memory, the same volume."""
    return Visits((owner + direction * step) % size, owner, 0)


def _distance(owner: Ints, direction: Ints, rank: Ints | int, size: int) -> Ints:
    """Ranks from the owner on: as many steps."""
    ahead = np.asarray(direction * (rank - owner))
    return np.where(ahead < 0, ahead + size, ahead)  # % takes three times as long


SCHEDULES = {
    schedule.name: schedule
    for schedule in (
        Schedule("ring", (+1,), _around, _distance, hand_to_hand=True),
        Schedule("bidirectional", (+1, -1), _around, _distance, hand_to_hand=True),
        Schedule("all-gather", (+1,), _from_owner, _distance, hand_to_hand=False),
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


def last_needed(schedule: Schedule, pieces: tuple[Piece, ...], needed: NDArray[np.bool_]) -> Ints:
    """The last step in which somebody needs each piece; -1 where nobody ever does.

    Parameters
    ----------
    needed : bool [size, pieces]
        Whether the mask gives a rank any pair with a piece.

    Returns
    -------
    int64 [pieces]
    """
    last, home = np.full(len(pieces), -1, np.int64), homes(pieces)
    for rank, needs in enumerate(needed):
        np.maximum(last, np.where(needs, schedule.step(*home, rank, len(needed)), -1), out=last)
    return last


def comes(schedule: Schedule, step: Ints, needs: NDArray[np.bool_], last: Ints) -> NDArray[np.bool_]:
    """Which pieces come to a rank, or stay at home to be used: it needs them, or hands them on to who does.

    Parameters
    ----------
    step : int64 [pieces]
        When they visit this rank, if they do.
    needs : bool [pieces]
        Whether this rank has any pair with them.
    last : int64 [pieces]
        See `last_needed`.
    """
    return step <= last if schedule.hand_to_hand else needs | ((step == 0) & (last >= 0))


def times_sent(schedule: Schedule, step: Ints, last: Ints, takers: Ints) -> Ints:
    """How often a rank sends each piece: once on to the next rank, or from its owner to everybody else who needs it.

    Parameters
    ----------
    step, last : int64 [pieces]
        As in `comes`.
    takers : int64 [pieces]
        Ranks that need the piece, its owner not counted.
    """
    return np.asarray(step < last, np.int64) if schedule.hand_to_hand else np.where(step == 0, takers, 0)
