"""THE RING LOOP: exact attention over a ring of ranks (Liu, Zaharia, Abbeel 2023, Algorithm 1). Start reading here.

Queries stay. In each of P ring steps a rank sends the keys and values that it holds to the next rank, receives those
of the rank before, and meanwhile attends to what it has; the online softmax (core/partial.py) makes the order of
meeting irrelevant. What is sent where is data (core/itinerary.py), and so is which pairs meet (core/work.py).

The loop is a generator: it yields a flight whenever it cannot go on before that hop has landed, so the same loop runs
under MPI (wait for the network) and in one process (let the other ranks have their turn).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from itertools import chain

from ringmpi.backends.base import Poll
from ringmpi.comm.protocol import Communicator, Flight
from ringmpi.core.itinerary import Itinerary
from ringmpi.passes.guard import UNGUARDED, Guard
from ringmpi.passes.slots import Cargo, Payload
from ringmpi.passes.timeline import RankTimeline


def ring_loop(
    itinerary: Itinerary,
    comm: Communicator,
    slots: Cargo,
    attend: Callable[[int, Payload, Poll], Iterator[int]],
    *,
    timeline: RankTimeline,
    guard: Guard = UNGUARDED,
) -> Iterator[Flight]:
    """One pass: every query of this rank meets every key that its mask allows.

    Parameters
    ----------
    attend : function (piece, payload, poll) -> iterator of int
        Does the work of one visit in kernel calls; yields after each the pairs that it attended to. MPI moves large
        messages only while it is called, so the kernels call `poll` every 1-2 ms.
    guard : Guard
        May have the pass saved, and stopped (guard.py). After a stop all that is under way still lands.

    Yields
    ------
    Flight
        Resume the loop once it has landed.
    """
    due: dict[int, list[Flight]] = defaultdict(list)
    under_way: deque[Flight] = deque()

    def poll() -> None:
        """Push the transfers on: MPI pushes all when one is tested, so the first that has not landed is enough."""
        if not under_way:
            return
        while under_way and under_way[0].landed():
            under_way.popleft()
        timeline.looked(step, under_way=bool(under_way))

    for step in itinerary.steps:
        if not guard.goes_on(step.index):
            break
        for hop in step.hops:
            sends, receives = slots.messages(hop)
            flight = comm.start(sends, receives)
            due[hop.due].append(flight)
            under_way.append(flight)
            timeline.posted(step, sends, receives)
        with timeline.attending(step):
            for piece in step.visits:
                for pairs in attend(piece, slots.payload(piece), poll):
                    timeline.attended(step, pairs)
        for flight in due.pop(step.index + 1, ()):
            with timeline.waiting(step):
                yield flight
        poll()
        slots.landed(step)
        if guard.settles():
            yield from chain(*due.values())
            due.clear()
            guard.settled()
    yield from chain(*due.values())
