"""The loop knows nothing of attention: any payload, several arrays a hop, steps without work, callbacks when landed."""

import numpy as np
import pytest

from ringmpi.comm.local import LocalRing
from ringmpi.comm.protocol import Message
from ringmpi.core.itinerary import Hop, Itinerary, Step
from ringmpi.core.schedule import Piece
from ringmpi.errors import RingError
from ringmpi.ring_loop import ring_loop
from ringmpi.slots import Form, Slots, piece_loads
from ringmpi.timeline import RankTimeline


def gradient_itinerary(size, rank):
    """Sums that travel one step behind the work and come home with the P-th hop, as gradients of keys do.

    Piece j names the sum for rank j. In step s a rank works on piece (rank - s) and passes on the sum before.
    """
    steps = []
    for step in range(size + 1):
        now, before = (rank - step) % size, (rank - step + 1) % size
        hop = Hop(step + 1, ((before, (rank + 1) % size),), ((now, (rank - 1) % size),))
        steps.append(Step(step, (hop,) if step else (), (now,) if step < size else ()))
    return Itinerary(rank, tuple(steps), {piece: piece for piece in range(size)}, (3,) * size, ())


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_sums_travel_one_step_behind_and_come_home(size):
    """P hops, the last step without work; what arrives is added to what was made meanwhile."""
    pieces = tuple(Piece(owner, 1, (range(3),), (0,)) for owner in range(size))
    ring = LocalRing(size)
    slots, loops, landings = [], [], [[] for _ in range(size)]
    for rank in range(size):
        plan = gradient_itinerary(size, rank)
        forms = [Form(1, 1, 2, np.dtype(np.float64)), Form(1, 1, 1, np.dtype(np.float64))]
        slots.append(Slots(plan.slot_of, plan.slot_lengths, piece_loads(pieces), forms))

        def work(piece, payload):
            yield 1

        def landed(step, rank=rank):
            landings[rank].append(step.index)
            for piece in step.visits:
                for array in slots[rank].payload(piece):
                    array[...] = (array if step.index else 0) + 10.0**rank

        timeline = RankTimeline(size + 1)
        loops.append(ring_loop(plan, ring.ranks[rank], slots[rank], work, timeline=timeline, landed=landed))
    ring.drive(loops)
    for rank in range(size):
        assert landings[rank] == list(range(size + 1))
        for array in slots[rank].payload(rank):
            assert (array == sum(10.0**other for other in range(size))).all()


def test_ranks_that_disagree_end_instead_of_waiting_for_ever():
    ring = LocalRing(2)

    def lonely(comm):
        yield comm.start([], [Message(1, 1, np.zeros(3))])

    with pytest.raises(RingError, match=r"no rank can go on; each waits for: \{0: \[1\]\}"):
        ring.drive([lonely(ring.ranks[0]), iter(())])


def test_a_message_of_another_length_is_refused():
    ring = LocalRing(2)

    def sender(comm):
        yield comm.start([Message(1, 1, np.zeros(3))], [])

    def receiver(comm):
        yield comm.start([], [Message(0, 1, np.zeros(4))])

    with pytest.raises(RingError, match="rank 0 sent 24 bytes, 32 expected"):
        ring.drive([sender(ring.ranks[0]), receiver(ring.ranks[1])])
