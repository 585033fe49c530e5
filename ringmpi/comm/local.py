"""P ranks in one process, taking turns: no MPI, no threads. The same loop, itinerary and buffers as on a cluster.

A message is copied when both ends have posted it and the receiver looks for it: the sender cannot go on before
(rendezvous), so a buffer that is written too early shows as a wrong result here too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from ringmpi.comm.protocol import Flight, Message
from ringmpi.errors import RingError


class LocalRing:
    """A ring of `size` simulated ranks; `ranks[r]` is the communicator of ring position r."""

    def __init__(self, size: int) -> None:
        self._meetings: dict[tuple[int, int, int, int], _Meeting] = defaultdict(_Meeting)
        self.size = size
        self.ranks = [LocalRank(self, rank) for rank in range(size)]

    def drive(self, loops: list[Iterator[Flight]]) -> None:
        """Run one loop per rank to its end: each goes on until it waits for a hop, then it is the next one's turn."""
        waiting = dict(enumerate(loops))
        flights: dict[int, Flight] = {}
        stuck = 0
        while waiting:
            moved = False
            for rank in sorted(waiting):
                if rank in flights and not flights[rank].landed():
                    continue
                moved = True
                try:
                    flights[rank] = next(waiting[rank])
                except StopIteration:
                    del waiting[rank]
            blame = {} if moved else {rank: flights[rank].waiting_for() for rank in waiting}
            # One that waits for nobody waits for its device; what came down from one may have been sent just now.
            stuck = stuck + 1 if blame and all(blame.values()) else 0
            if stuck > 1:
                raise RingError(f"no rank can continue; each waits for: {blame}. The itineraries of the ranks differ.")


class _Meeting:
    """The nth message from one rank to another under one tag: offered by the one, fetched by the other."""

    def __init__(self) -> None:
        self.array: Any = None
        self.done = False


class LocalRank:
    """The communicator of one simulated rank."""

    takes_device_memory = False

    def __init__(self, ring: LocalRing, rank: int) -> None:
        self._ring = ring
        self._posted: Counter[tuple[int, int, int]] = Counter()
        self.rank = rank

    @property
    def size(self) -> int:
        """Ranks in the ring."""
        return self._ring.size

    def start(self, sends: list[Message], receives: list[Message]) -> Flight:
        """Offer the sends to their receivers. As in MPI, messages of one tag meet in the order of posting."""
        offered = [(message, self._meet(self.rank, message.peer, message.tag)) for message in sends]
        for message, meeting in offered:
            meeting.array = message.array
        return _LocalFlight(
            offered, [(message, self._meet(message.peer, self.rank, message.tag)) for message in receives]
        )

    def _meet(self, source: int, target: int, tag: int) -> _Meeting:
        self._posted[source, target, tag] += 1
        return self._ring._meetings[source, target, tag, self._posted[source, target, tag]]


class _LocalFlight:
    """Fetches what has been offered."""

    def __init__(self, sends: list[tuple[Message, _Meeting]], receives: list[tuple[Message, _Meeting]]) -> None:
        self._sends = sends
        self._receives = receives

    def landed(self) -> bool:
        for message, meeting in self._receives:
            if not meeting.done and meeting.array is not None:
                self._fetch(message, meeting)
        return not self.waiting_for()

    def waiting_for(self) -> list[int]:
        return sorted({message.peer for message, meeting in self._sends + self._receives if not meeting.done})

    @staticmethod
    def _fetch(message: Message, meeting: _Meeting) -> None:
        if meeting.array.nbytes != message.array.nbytes:
            raise RingError(f"rank {message.peer} sent {meeting.array.nbytes} bytes, {message.array.nbytes} expected.")
        message.array[...] = meeting.array
        meeting.array, meeting.done = None, True
