"""The loop knows nothing of attention: any payload, several arrays a hop, steps without work, callbacks when landed."""

import numpy as np
import pytest

from ringmpi.comm.local import LocalRing
from ringmpi.comm.protocol import Message
from ringmpi.core.itinerary import Hop, Itinerary, Step
from ringmpi.core.schedule import Piece
from ringmpi.errors import RingError
from ringmpi.passes.guard import UNGUARDED, Unguarded
from ringmpi.passes.ring_loop import ring_loop
from ringmpi.passes.slots import Form, Load, Slots, piece_loads
from ringmpi.passes.timeline import RankTimeline


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

        def work(piece, payload, poll):
            yield 1

        def landed(step, rank=rank):
            landings[rank].append(step.index)
            for piece in step.visits:
                for array in slots[rank].payload(piece):
                    array[...] = (array if step.index else 0) + 10.0**rank

        slots[rank].landed = landed
        timeline = RankTimeline(size + 1)
        loops.append(ring_loop(plan, ring.ranks[rank], slots[rank], work, timeline=timeline))
    ring.drive(loops)
    for rank in range(size):
        assert landings[rank] == list(range(size + 1))
        for array in slots[rank].payload(rank):
            assert (array == sum(10.0**other for other in range(size))).all()


class SlowFlight:
    """Lands at the nth look."""

    def __init__(self, looks):
        self.looks, self.needed = 0, looks

    def landed(self):
        self.looks += 1
        return self.looks >= self.needed

    def waiting_for(self):
        return []


class SlowNetwork:
    rank, size = 0, 3

    def __init__(self, *looks):
        self.flights = [SlowFlight(needed) for needed in looks]
        self._free = iter(self.flights)

    def start(self, sends, receives):
        return next(self._free)


def step_of(index, *dues):
    return Step(index, tuple(Hop(due, (), ()) for due in dues), (0,))


def loop_over(network, steps, looks, guard=UNGUARDED):
    """The ring loop over kernels that look so often each."""
    slots = Slots({0: 0}, (1,), [Load(1, 1)], [])

    def attend(piece, payload, poll):
        for _ in range(looks):
            poll()
        yield 1

    itinerary = Itinerary(0, steps, {}, (), ())
    return ring_loop(itinerary, network, slots, attend, timeline=RankTimeline(len(steps)), guard=guard)


def test_kernels_push_transfers_on_and_leave_those_that_have_landed():
    network = SlowNetwork(3, 4)
    loop = loop_over(network, (step_of(0, 1, 2), step_of(1)), looks=10)
    assert next(loop) is network.flights[0]
    assert [flight.looks for flight in network.flights] == [3, 4]
    assert list(loop) == [network.flights[1]]
    assert [flight.looks for flight in network.flights] == [3, 4]


class Settling(Unguarded):
    """Has all that is under way land at the end of the first step."""

    def __init__(self):
        self.at = [True, False, False]

    def settles(self):
        return self.at.pop(0)


def test_what_has_landed_before_a_save_is_not_waited_for_again():
    network = SlowNetwork(1, 1)
    loop = loop_over(network, (step_of(0, 1, 3), step_of(1), step_of(2)), looks=0, guard=Settling())
    assert list(loop) == network.flights


def test_a_look_at_one_transfer_that_is_under_way_is_enough():
    """MPI pushes all of them: with a thousand ranks a look stays as quick."""
    network = SlowNetwork(100, 100, 100)
    next(loop_over(network, (step_of(0, 1, 1, 1),), looks=10))
    assert [flight.looks for flight in network.flights] == [10, 0, 0]


def test_ranks_that_disagree_end_instead_of_waiting_for_ever():
    ring = LocalRing(2)

    def lonely(comm):
        yield comm.start([], [Message(1, 1, np.zeros(3))])

    with pytest.raises(RingError, match=r"no rank can continue; each waits for: \{0: \[1\]\}"):
        ring.drive([lonely(ring.ranks[0]), iter(())])


def test_a_message_of_another_length_is_refused():
    ring = LocalRing(2)

    def sender(comm):
        yield comm.start([Message(1, 1, np.zeros(3))], [])

    def receiver(comm):
        yield comm.start([], [Message(0, 1, np.zeros(4))])

    with pytest.raises(RingError, match="rank 0 sent 24 bytes, 32 expected"):
        ring.drive([sender(ring.ranks[0]), receiver(ring.ranks[1])])
