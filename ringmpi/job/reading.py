"""Reading the input, by all ranks: each position once, with a look for NaN and inf and a checksum of what was read.

A rank whose positions lie together reads them by itself. Where the ranks would read the file several times over
(stripes, or large compressed boxes that many shards share) they read it together: every box is read, and inflated, by
one rank, which sends the rows to those that own them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ringmpi.asking.question import Question
from ringmpi.comm.agreement import LONG_WORK, Exchanges, together
from ringmpi.comm.protocol import Communicator, Flight, Message, Tag
from ringmpi.core.content import Content, content_of
from ringmpi.core.sharding import Sharding
from ringmpi.passes.forward_pass import ForwardPass
from ringmpi.storage.bits import Bits
from ringmpi.storage.slabs import SLAB_BYTES, RowMap, Slab, as_slice, rows_within
from ringmpi.storage.source import ArraySource

Part: TypeAlias = tuple[range, ...]  # positions that lie in one array of a rank, in its order
KEY_AND_VALUE = ("key", "value")
WORTH_SENDING = 1.5  # ranks that read on their own may read this many times the file
READING = "reading the input"


class ReadingRing(Communicator, Exchanges, Protocol):
    """A transport that also comes to agreements, and runs a loop of flights."""

    def drive(self, loop: Iterator[Flight], during: Callable[[], str] = ...) -> None:
        """Run a loop to its end."""
        ...


@dataclass(frozen=True, eq=False)
class Share:
    """What all ranks want of one dataset, and where this rank wants it.

    Attributes
    ----------
    wanted : sequence [ranks] of sequence of Part
    arrays : sequence of array [batch, heads, positions, dim]
        One for each part of this rank.
    """

    source: ArraySource
    wanted: Sequence[Sequence[Part]]
    arrays: Sequence[NDArray[Any]]

    def is_read_together(self) -> bool:
        """Whether ranks on their own would read much more than the file holds."""
        alone = sum(self.source.rows_touched(part) for parts in self.wanted for part in parts)
        return alone > WORTH_SENDING * self.source.length

    def content(self, rank: int) -> Content:
        """Of what this rank has read."""
        parts = zip(self.wanted[rank], self.arrays, strict=True)
        return sum((content_of(array, part, self.source.length) for part, array in parts), Content())

    def array_of_rows(self) -> NDArray[Any]:
        """The one array of this rank, without the last axis where the dataset has none."""
        return self.arrays[0] if self.source.has_dim else self.arrays[0][..., 0]

    @property
    def is_whole(self) -> bool:
        """Whether every position is read; keys that no query of any rank may see are not."""
        return sum(len(r) for parts in self.wanted for part in parts for r in part) == self.source.length


@dataclass(frozen=True)
class Reading:
    """What was read.

    Attributes
    ----------
    arrays : dict
        Name -> array of this rank, [batch, heads, positions, dim] (grad_log_sum_exp without dim). "key" and "value" are
        not in it where they lie in the slots of the pass. Whoever takes the last use of an array takes it out.
    contents : dict
        Name of an array -> the Content of the shard of every rank.
    whole : frozenset of str
        Names of the arrays of which every position was read.
    """

    arrays: dict[str, NDArray[Any]]
    contents: dict[str, list[Content]]
    whole: frozenset[str]

    def take(self, name: str, *, last: bool) -> NDArray[Any]:
        """An array of this rank. `last`: of no use to anybody else, so that a copy elsewhere can take its place."""
        return self.arrays.pop(name) if last else self.arrays[name]

    def finite(self, *names: str) -> NDArray[np.bool_]:
        """Which ranks hold neither NaN nor inf in their shards of these arrays, bool [size]; of all by default."""
        ranks = zip(*(self.contents[name] for name in names or self.contents), strict=True)
        return np.array([all(content.finite for content in contents) for contents in ranks], np.bool_)

    def checksums(self) -> dict[str, str]:
        """Name -> checksum of the array, for arrays that were read whole."""
        return {name: str(sum(ranks, Content())) for name, ranks in self.contents.items() if name in self.whole}

    def warning(self) -> str:
        """How many numbers of which array are not finite, and on which ranks; empty where all are."""
        found = []
        for name, ranks in self.contents.items():
            total = sum(ranks, Content())
            if not total.finite:
                where = [rank for rank, content in enumerate(ranks) if not content.finite]
                found.append(f"{name} holds {total.nan:,} NaN and {total.inf:,} inf (ranks {where})")
        return "; ".join([*found, "only rows that attend to them are affected"]) if found else ""


def read_inputs(ring: ReadingRing, question: Question, forward: ForwardPass) -> Reading:
    """Read the shard of this rank. Collective.

    Keys and values go straight into their slots, where the pass has them (`donated`); else into arrays of their own.

    Raises
    ------
    StorageError
        On all ranks where they read by themselves; where they read together, on the rank that cannot.
    """
    shares = together(ring, "allocating memory", lambda: _shares(question, forward))
    apart = [share for share in shares.values() if not share.is_read_together()]

    def read_alone() -> None:
        with forward.timeline.reading():  # in here, so that no rank counts its wait for a slower one
            _read_alone(apart, ring.rank)

    together(ring, READING, read_alone, patience=LONG_WORK)
    for share in shares.values():
        if share not in apart:
            with forward.timeline.reading():
                ring.drive(read_together(ring, share), lambda: READING)
    mine = {name: share.content(ring.rank) for name, share in shares.items()}
    everyone = ring.exchange(mine, "looking for NaN and inf")
    contents = {name: [theirs[name] for theirs in everyone] for name in shares}
    whole = frozenset(name for name, share in shares.items() if share.is_whole)
    in_slots = KEY_AND_VALUE if forward.donated else ()
    if forward.donated:
        forward.fill_own(list(zip(shares["key"].arrays, shares["value"].arrays, strict=True)))
    arrays = {name: share.array_of_rows() for name, share in shares.items() if name not in in_slots}
    return Reading(arrays, contents, whole)


def _read_alone(shares: Sequence[Share], rank: int) -> None:
    """Read what this rank wants of each dataset, whatever the others do."""
    for share in shares:
        for part, array in zip(share.wanted[rank], share.arrays, strict=True):
            share.source.read(part, array if share.source.has_dim else array[..., 0])


def _shares(question: Question, forward: ForwardPass) -> dict[str, Share]:
    problem = forward.problem
    shares = {
        name: _whole_share(source, problem.keys if name in KEY_AND_VALUE else problem.queries, forward.rank)
        for name, source in question.arrays.items()
        if not (forward.donated and name in KEY_AND_VALUE)
    }
    if not forward.donated:
        return shares
    keys: list[list[Part]] = [[] for _ in range(problem.size)]
    for index in forward.read_pieces:
        keys[problem.pieces[index].owner].append(problem.pieces[index].ranges)
    rooms = forward.own_rooms()
    return shares | {
        "key": Share(question.k, keys, [k for k, _ in rooms]),
        "value": Share(question.v, keys, [v for _, v in rooms]),
    }


def _whole_share(source: ArraySource, sharding: Sharding, rank: int) -> Share:
    """Every rank wants its shard, all of it, in one array."""
    batch, heads, _, dim = source.full_shape
    array = np.empty((batch, heads, sharding.shard_length(rank), dim), source.dtype)
    return Share(source, [[shard] for shard in sharding.shards], [array])


def read_together(ring: Communicator, share: Share, *, slab_bytes: int = SLAB_BYTES) -> Iterator[Flight]:
    """Read a dataset in turns: box n of a turn is read by rank n, which sends its rows to those that want them.

    Parameters
    ----------
    slab_bytes : int
        Bound on the memory of one box, bytes. A rank holds the one that it reads, the rows that it sends, and those
        that it is sent: three times the bound at most, where ranks own equal shares.

    Yields
    ------
    Flight
        Resume once it has landed.
    """
    boxes = share.source.boxes(ring.size, slab_bytes)
    for first in range(0, len(boxes), ring.size):
        turn = boxes[first : first + ring.size]
        sends: list[Message] = []
        receives: list[Message] = []
        arrivals: list[tuple[Slab, Bits]] = []
        for reader, box in enumerate(turn):
            if reader == ring.rank:
                packed = _packed(share, box)
                sends = [Message(peer, Tag.INPUT, rows) for peer, rows in packed.items() if peer != reader]
                arrivals += [(box, packed[reader])] if reader in packed else []
            elif count := _count(share.wanted[ring.rank], box):
                rows = np.empty((*_lead(box), count, share.source.full_shape[3]), share.source.bits)
                receives.append(Message(reader, Tag.INPUT, rows))
                arrivals.append((box, rows))
        yield ring.start(sends, receives)
        for box, rows in arrivals:
            _put(share, ring.rank, box, rows)


def _lead(box: Slab) -> tuple[int, int]:
    return box.batch.stop - box.batch.start, box.heads.stop - box.heads.start


def _maps(parts: Sequence[Part], box: Slab) -> Iterator[tuple[int, RowMap]]:
    """What each part of a rank has in the rows of a box: both ends list it in this order."""
    for part, ranges in enumerate(parts):
        for row_map in rows_within(ranges, box.rows):
            yield part, row_map


def _count(parts: Sequence[Part], box: Slab) -> int:
    return sum(len(rows) for _, (rows, _) in _maps(parts, box))


def _packed(share: Share, box: Slab) -> dict[int, Bits]:
    """Read a box; the rows of it that each rank wants, contiguous."""
    numbers = share.source.read_slab(box)
    packed = {}
    for peer, parts in enumerate(share.wanted):
        rows = [numbers[:, :, as_slice(positions, box.rows.start)] for _, (positions, _) in _maps(parts, box)]
        if rows:
            packed[peer] = np.ascontiguousarray(np.concatenate(rows, axis=2))
    return packed


def _put(share: Share, rank: int, box: Slab, rows: Bits) -> None:
    """Put rows of a box where this rank wants them."""
    done = 0
    for part, (positions, target) in _maps(share.wanted[rank], box):
        array = share.arrays[part].view(rows.dtype)
        array[box.batch, box.heads, as_slice(target)] = rows[:, :, done : done + len(positions)]
        done += len(positions)
