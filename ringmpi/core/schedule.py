"""When each rank meets each piece of the keys: the one file that knows schedules.

A schedule is data. A piece makes hops along the ring, away from its owner, as far as somebody needs it. The rank at
`distance` d from the owner (in ranks, in the direction of travel) gets it like this:

                  source             leaves with     is due          is attended to
    ring          rank before        d - 1           d               d
    all-gather    owner              0               d               d
    broadcast     rank before        n + d - 1       n + d           n + lead

The bidirectional schedule is the ring with half of each piece each way. In a broadcast piece n is the nth block of the
whole sequence: all ranks attend to block n in one and the same step, so every query meets all keys in ascending order,
on any number of ranks. `lead` is the farthest that any piece travels; until a block's turn a rank keeps it, so some
P blocks are on a rank at once, however long the sequence.

Sends, receives, slots and bytes follow from this table (core/itinerary.py); no schedule has a loop of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.sharding import BLOCK, Sharding
from ringmpi.errors import ShapeError

Ints = NDArray[np.int64]
RANGES_APART = 4  # a shard of more ranges travels as one piece: many small messages cost more than pruning saves


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

    @property
    def rows(self) -> tuple[slice, ...]:
        """Of each range, the local indices in the owner's shard."""
        return tuple(slice(start, start + len(part)) for start, part in zip(self.starts, self.ranges, strict=True))


@dataclass(frozen=True)
class Schedule:
    """A way round.

    Attributes
    ----------
    hand_to_hand : bool
        Every visit is sent by the rank before. Otherwise every one is sent by the owner.
    in_order : bool
        Pieces are blocks of the sequence, which all ranks meet in ascending order.
    """

    name: str
    directions: tuple[int, ...]
    hand_to_hand: bool
    in_order: bool = False

    @property
    def gradients_travel(self) -> bool:
        """Whether sums of gradients follow a piece: not where all ranks work on it at once."""
        return not self.in_order

    @property
    def backward_passes(self) -> int:
        """How often every pair is met in a backward pass: where no gradients travel each side has a pass of its own."""
        return 1 if self.gradients_travel else 2


SCHEDULES = {
    schedule.name: schedule
    for schedule in (
        Schedule("ring", (+1,), hand_to_hand=True),
        Schedule("bidirectional", (+1, -1), hand_to_hand=True),
        Schedule("all-gather", (+1,), hand_to_hand=False),
        Schedule("broadcast", (+1,), hand_to_hand=True, in_order=True),
    )
}


def schedule_by_name(name: str, *, in_order: bool = False) -> Schedule:
    """The schedule of this name; "auto" is the ring, or what meets keys in order. ShapeError lists the known ones."""
    if name == "auto":
        name = "broadcast" if in_order else "ring"
    if name not in SCHEDULES:
        raise ShapeError(f"schedule {name!r} is unknown; choose one of {', '.join(SCHEDULES)}.")
    return SCHEDULES[name]


def cut_pieces(sharding: Sharding, schedule: Schedule) -> tuple[Piece, ...]:
    """The pieces of all shards: each range of a shard, and of each range a part for every direction, or its blocks."""
    if schedule.in_order:
        return _cut_blocks(sharding)
    pieces = []
    for owner, shard in enumerate(sharding.shards):
        starts = _starts(shard)
        groups = [[n] for n in range(len(shard))] if len(shard) <= RANGES_APART else [range(len(shard))]
        for group in groups:
            for nth, direction in enumerate(schedule.directions):
                cut = [_part(shard[n], nth, len(schedule.directions)) for n in group]
                local = tuple(starts[n] + start for n, (_, start) in zip(group, cut, strict=True))
                pieces.append(Piece(owner, direction, tuple(part for part, _ in cut), local))
    return tuple(pieces)


def _starts(shard: tuple[range, ...]) -> list[int]:
    """Local index of the first position of each range."""
    starts: list[int] = np.cumsum([0, *map(len, shard)]).tolist()
    return starts[:-1]


def _part(whole: range, nth: int, parts: int) -> tuple[range, int]:
    """The nth of equal parts of a range, and the index where it starts."""
    start = len(whole) * nth // parts
    return whole[start : len(whole) * (nth + 1) // parts], start


def _cut_blocks(sharding: Sharding) -> tuple[Piece, ...]:
    """The blocks of all shards by ascending first position: the same for all rank counts if the cuts are between them.

    A sharding that is made of whole blocks has its own length of block; others are cut in blocks of BLOCK positions.
    """
    block = sharding.block if sharding.block > 1 else BLOCK
    pieces = [
        Piece(owner, +1, (run[first : first + block],), (start + first,))
        for owner, shard in enumerate(sharding.shards)
        for run, start in zip(shard, _starts(shard), strict=True)
        for first in range(0, len(run), block)
    ]
    return tuple(sorted(pieces, key=lambda piece: piece.ranges[0].start))


class Visits(NamedTuple):
    """How pieces come to ranks, int64 [visits] each. `sent_at` and `due` have no meaning at home.

    source   ring position that sends it
    sent_at  the step at whose start the message leaves
    due      the step before which it must have landed
    step     the step in which it is attended to, if it is
    """

    source: Ints
    sent_at: Ints
    due: Ints
    step: Ints


@dataclass(frozen=True)
class Route:
    """The ways of all pieces, each as long as it must be.

    Attributes
    ----------
    owner, direction : int64 [pieces]
    last : int64 [pieces]
        Distance of the farthest rank that needs the piece; -1 where nobody ever does.
    """

    schedule: Schedule
    size: int
    owner: Ints
    direction: Ints
    last: Ints

    @property
    def lead(self) -> int:
        """Steps that a block is sent off before its turn."""
        return max(int(self.last.max(initial=0)), 0) if self.schedule.in_order else 0

    @property
    def steps(self) -> int:
        """Steps of a pass, the same on all ranks."""
        return self.lead + turns(self.schedule, len(self.owner), self.size)

    def distance(self, rank: Ints | int) -> Ints:
        """Ranks from the owner on, in the direction of travel, int64 [pieces]."""
        return distances(self.owner, self.direction, rank, self.size)

    def rank_at(self, which: Ints, distance: Ints | int) -> Ints:
        """The rank at `distance` from the owner of each of the pieces `which`."""
        return np.asarray((self.owner[which] + self.direction[which] * distance) % self.size)

    def due(self, which: Ints, distance: Ints) -> Ints:
        """The step before which the pieces `which` must have landed at `distance` from their owners."""
        return which + distance if self.schedule.in_order else distance

    def visits(self, which: Ints, distance: Ints) -> Visits:
        """How the pieces `which` come to the ranks at `distance` from their owners."""
        hand_to_hand = self.schedule.hand_to_hand
        start = which if self.schedule.in_order else np.zeros_like(which)
        return Visits(
            source=self.rank_at(which, distance - 1) if hand_to_hand else self.owner[which],
            sent_at=start + distance - 1 if hand_to_hand else start,
            due=self.due(which, distance),
            step=self.lead + turn(self.schedule, which, distance),
        )

    def comes(self, distance: Ints, needs: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which pieces come to a rank, or stay at home to be used: it needs them, or hands them on to who does.

        Parameters
        ----------
        distance : int64 [pieces]
            Of this rank.
        needs : bool [pieces]
            Whether this rank has any pair with them.
        """
        return distance <= self.last if self.schedule.hand_to_hand else needs | ((distance == 0) & (self.last >= 0))

    def times_sent(self, distance: Ints, takers: Ints) -> Ints:
        """How often a rank sends each piece: once on to the next, or from its owner to everybody else who needs it.

        Parameters
        ----------
        distance : int64 [pieces]
            Of this rank.
        takers : int64 [pieces]
            Ranks that need the piece, its owner not counted.
        """
        if self.schedule.hand_to_hand:
            return np.asarray(distance < self.last, np.int64)
        return np.where(distance == 0, takers, 0)


def plan_route(schedule: Schedule, pieces: tuple[Piece, ...], needed: NDArray[np.bool_]) -> Route:
    """The Route of pieces that travel no farther than somebody needs them.

    Parameters
    ----------
    needed : bool [size, pieces]
        Whether the mask gives a rank any pair with a piece.
    """
    last, (owner, direction) = np.full(len(pieces), -1, np.int64), homes(pieces)
    for rank, needs in enumerate(needed):
        np.maximum(last, np.where(needs, distances(owner, direction, rank, len(needed)), -1), out=last)
    return Route(schedule, len(needed), owner, direction, last)


def homes(pieces: tuple[Piece, ...]) -> tuple[Ints, Ints]:
    """Owner and direction of all pieces, int64 [pieces] each."""
    owner = np.array([piece.owner for piece in pieces], np.int64)
    return owner, np.array([piece.direction for piece in pieces], np.int64)


def turns(schedule: Schedule, pieces: int, size: int) -> int:
    """How many turns there are: one a block, or one a distance."""
    return pieces if schedule.in_order else size


def turn(schedule: Schedule, which: Ints, distance: Ints) -> Ints:
    """When ranks at `distance` attend to the pieces `which`, before `Route.lead` is added: known without the needs."""
    return which if schedule.in_order else distance


def distances(owner: Ints, direction: Ints, rank: Ints | int, size: int) -> Ints:
    """Ranks from `owner` on to `rank`, in the direction of travel."""
    ahead = np.asarray(direction * (rank - owner))
    return np.where(ahead < 0, ahead + size, ahead)  # % takes three times as long
