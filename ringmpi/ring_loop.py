"""THE RING LOOP: exact attention over a ring of ranks (Liu, Zaharia, Abbeel 2023, Algorithm 1). Start reading here.

Queries stay. In each of P ring steps a rank sends the keys and values that it holds to the next rank, receives those
of the rank before, and meanwhile attends to what it has; the online softmax (core/partial.py) makes the order of
meeting irrelevant. What is sent where is data (core/itinerary.py), and so is which pairs meet (core/work.py).

The loop is a generator: it yields a flight whenever it cannot go on before that hop has landed, so the same loop runs
under MPI (wait for the network) and in one process (let the other ranks have their turn).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import chain

from ringmpi.comm.protocol import Communicator, Flight
from ringmpi.core.itinerary import Itinerary, Step
from ringmpi.slots import Cargo, Payload
from ringmpi.timeline import RankTimeline


def ring_loop(
    itinerary: Itinerary,
    comm: Communicator,
    slots: Cargo,
    attend: Callable[[int, Payload], Iterator[int]],
    *,
    timeline: RankTimeline,
    landed: Callable[[Step], None] = lambda step: None,
) -> Iterator[Flight]:
    """One pass: every query of this rank meets every key that its mask allows.

    Parameters
    ----------
    attend : function (piece, payload) -> iterator of int
        Does the work of one visit in kernel calls of about 50 ms, so that MPI progresses between them; yields after
        each the pairs that it attended to.
    landed : function (step)
        Called when all that is due after a step has landed: for payloads that add up on their way (gradients).

    Yields
    ------
    Flight
        Resume the loop once it has landed.
    """
    flights: dict[int, list[Flight]] = defaultdict(list)
    for step in itinerary.steps:
        for hop in step.hops:
            sends, receives = slots.messages(hop)
            flights[hop.due].append(comm.start(sends, receives))
            timeline.posted(step, sends, receives)
        with timeline.attending(step):
            for piece in step.visits:
                for pairs in attend(piece, slots.payload(piece)):
                    timeline.attended(step, pairs)
                    for flight in chain(*flights.values()):
                        flight.landed()
        for flight in flights.pop(step.index + 1, ()):
            with timeline.waiting(step):
                yield flight
        landed(step)
