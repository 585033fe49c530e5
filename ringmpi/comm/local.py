"""P ranks in one process, taking turns: no MPI, no threads. The same loop, itinerary and buffers as on a cluster.

A message is copied when both ends have posted it and the receiver looks for it: the sender cannot go on before
(rendezvous), so a buffer that is written too early shows as a wrong result here too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

from ringmpi.comm.protocol import Flight, Message
from ringmpi.errors import RingError


class LocalRing:
    """A ring of `size` simulated ranks; `ranks[r]` is the communicator of ring position r."""

    def __init__(self, size: int) -> None:
        self._posted: dict[tuple[int, int, int], deque[_Send]] = defaultdict(deque)
        self.size = size
        self.ranks = [LocalRank(self, rank) for rank in range(size)]

    def drive(self, loops: list[Iterator[Flight]]) -> None:
        """Run one loop a rank to its end: each goes on until it waits for a hop, then it is the next one's turn."""
        waiting = dict(enumerate(loops))
        flights: dict[int, Flight] = {}
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
            if not moved:
                blame = {rank: flights[rank].waiting_for() for rank in waiting}
                raise RingError(f"no rank can go on; each waits for: {blame}. The itineraries of the ranks differ.")


class _Send:
    """A message that its receiver has not fetched yet."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.done = False


class LocalRank:
    """The communicator of one simulated rank."""

    def __init__(self, ring: LocalRing, rank: int) -> None:
        self._ring = ring
        self.rank = rank

    @property
    def size(self) -> int:
        """Ranks in the ring."""
        return self._ring.size

    def start(self, sends: list[Message], receives: list[Message]) -> Flight:
        """Offer the sends to their receivers."""
        offered = []
        for message in sends:
            send = _Send(message.array)
            self._ring._posted[self.rank, message.peer, message.tag].append(send)
            offered.append((message.peer, send))
        boxes = [(self._ring._posted[m.peer, self.rank, m.tag], m) for m in receives]
        return _LocalFlight(offered, boxes)


class _LocalFlight:
    """Fetches what has been offered, in order."""

    def __init__(self, sends: list[tuple[int, _Send]], receives: list[tuple[deque[_Send], Message]]) -> None:
        self._sends = sends
        self._receives = receives

    def landed(self) -> bool:
        self._receives = [entry for entry in self._receives if not self._fetch(*entry)]
        return not self._receives and all(send.done for _, send in self._sends)

    def waiting_for(self) -> list[int]:
        late = [message.peer for _, message in self._receives]
        return sorted({*late, *(peer for peer, send in self._sends if not send.done)})

    @staticmethod
    def _fetch(box: deque[_Send], message: Message) -> bool:
        if not box:
            return False
        send = box.popleft()
        if send.array.nbytes != message.array.nbytes:
            raise RingError(f"rank {message.peer} sent {send.array.nbytes} bytes, {message.array.nbytes} expected.")
        message.array[...] = send.array
        send.done = True
        return True
