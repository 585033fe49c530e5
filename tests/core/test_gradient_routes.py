"""The way of gradients: every contribution comes home once, in slots that hold one sum at a time."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi import Sharding
from ringmpi.core.gradient_routes import arrived, follow, made, plan_gradients
from ringmpi.core.itinerary import GRADIENTS, PIECES, plan_itinerary
from ringmpi.core.schedule import SCHEDULES, cut_pieces
from tests.strategies import LENGTHS, RANKS, shardings

IN_FLIGHT = "in flight"
TRAVELLING = sorted(name for name, schedule in SCHEDULES.items() if not schedule.in_order)  # of whose keys sums travel


@st.composite
def needs(draw):
    """(schedule, pieces, who works on what)."""
    size, length = draw(RANKS), draw(LENGTHS)
    schedule = SCHEDULES[draw(st.sampled_from(TRAVELLING))]
    pieces = cut_pieces(draw(shardings(length, size)), schedule)
    cells = draw(st.lists(st.booleans(), min_size=size * len(pieces), max_size=size * len(pieces)))
    return schedule, pieces, np.array(cells, bool).reshape(size, len(pieces))


def plans_of(schedule, pieces, needed):
    """(itinerary with gradients, plan of gradients) of every rank."""
    plans = [plan_gradients(schedule, pieces, needed, rank) for rank in range(len(needed))]
    walks = [plan_itinerary(schedule, pieces, needed, rank) for rank in range(len(needed))]
    return [(follow(walk, plan), plan) for walk, plan in zip(walks, plans, strict=True)]


class Slot:
    """A slot with symbolic contents: which load, and whose contributions it holds."""

    def __init__(self):
        self.load, self.sum, self.sent_until, self.receiving = None, Counter(), 0, False

    def write(self, load, step):
        assert not self.receiving, "a slot is written while a message arrives in it"
        assert self.sent_until <= step, "a slot is written while it is sent"
        self.load, self.sum = load, Counter()

    def read(self, load):
        assert not self.receiving, "a sum is read before it has landed"
        assert self.load == load, "a slot holds another sum than the one that is read"
        return self.sum


class Walk:
    """All ranks in step, with symbols for arrays: what BackwardPass and the ring loop do to memory."""

    def __init__(self, pieces, plans):
        self.pieces, self.plans = pieces, plans
        self.slots = [[Slot() for _ in plan.slot_lengths] for _, plan in plans]
        self.posted, self.landing = {}, {}

    def slot(self, rank, load):
        plan = self.plans[rank][1]
        assert self.pieces[load // 2].length <= plan.slot_lengths[plan.slot_of[load]]
        return self.slots[rank][plan.slot_of[load]]

    def run(self):
        for step in range(len(self.plans) + 1):
            for rank, (walk, _) in enumerate(self.plans):
                for hop in (hop for hop in walk.steps[step].hops if hop.cargo == GRADIENTS):
                    self.post(rank, step, hop)
            assert sorted(self.posted) == sorted(self.expected(step)), "senders and receivers disagree"
            for rank, (walk, _) in enumerate(self.plans):
                for piece in walk.steps[step].visits:
                    self.slot(rank, made(piece)).write(made(piece), step)
                    self.slot(rank, made(piece)).sum[rank] = 1
            self.land(step + 1)
            for rank, (_, plan) in enumerate(self.plans):
                for piece in plan.additions.get(step, ()):
                    slot = self.slot(rank, made(piece))
                    assert slot.sent_until <= step + 1, "a sum is added to while it is sent"
                    slot.read(made(piece)).update(self.slot(rank, arrived(piece)).read(arrived(piece)))
        assert not self.posted, "a message has not landed by the end"

    def post(self, rank, step, hop):
        for load, peer in hop.sends:
            slot = self.slot(rank, load)
            self.posted[step, hop.due, rank, peer, load // 2] = Counter(slot.read(load))
            slot.sent_until = max(slot.sent_until, hop.due)
        for load, peer in hop.receives:
            slot = self.slot(rank, load)
            slot.write(load, step)
            slot.receiving = True
            self.landing[step, hop.due, peer, rank, load // 2] = slot

    def expected(self, step):
        return [message for message in self.landing if message[0] <= step]

    def land(self, due):
        for message in [message for message in self.posted if message[1] == due]:
            slot = self.landing.pop(message)
            slot.sum, slot.receiving = self.posted.pop(message), False


@given(needs())
def test_every_contribution_comes_home_once_and_slots_hold_one_sum_at_a_time(drawn):
    schedule, pieces, needed = drawn
    walk = Walk(pieces, plans_of(schedule, pieces, needed))
    walk.run()
    for rank, (_, plan) in enumerate(walk.plans):
        worked_on = [n for n, piece in enumerate(pieces) if piece.owner == rank and needed[:, n].any()]
        assert sorted(plan.home) == worked_on
        for piece, load in plan.home.items():
            assert walk.slot(rank, load).read(load) == Counter(np.flatnonzero(needed[:, piece]).tolist())


@given(needs())
def test_gradients_take_nothing_from_the_pieces(drawn):
    """The hops and visits of the pieces are those of the forward pass; one step more takes the last sums home."""
    schedule, pieces, needed = drawn
    for rank in range(len(needed)):
        alone = plan_itinerary(schedule, pieces, needed, rank)
        both = follow(alone, plan_gradients(schedule, pieces, needed, rank))
        assert [step.index for step in both.steps] == list(range(len(needed) + 1))
        assert both.steps[-1].visits == ()
        for before, after in zip(alone.steps, both.steps, strict=False):
            assert after.visits == before.visits
            assert tuple(hop for hop in after.hops if hop.cargo == PIECES) == before.hops
        assert (both.slot_of, both.own) == (alone.slot_of, alone.own)


@given(needs())
def test_messages_between_two_ranks_are_listed_in_one_order(drawn):
    """They share a tag, so the order of posting decides which is which."""
    schedule, pieces, needed = drawn
    sent, received = {}, {}
    for rank, (walk, _) in enumerate(plans_of(schedule, pieces, needed)):
        for step in walk.steps:
            for hop in (hop for hop in step.hops if hop.cargo == GRADIENTS):
                for load, peer in hop.sends:
                    sent.setdefault((rank, peer), []).append((step.index, load // 2))
                for load, peer in hop.receives:
                    received.setdefault((peer, rank), []).append((step.index, load // 2))
    assert sent == received


@pytest.mark.parametrize("name", TRAVELLING)
@pytest.mark.parametrize("size", [2, 3, 4, 8, 16, 32])
def test_slots_of_gradients_do_not_grow_with_the_ranks(name, size):
    """Of a full ring: one sum is made, one arrives, and the one made before is on its way."""
    pieces = cut_pieces(Sharding.contiguous(64 * size, size), SCHEDULES[name])
    for rank in (0, size // 2, size - 1):
        plan = plan_gradients(SCHEDULES[name], pieces, np.ones((size, len(pieces)), bool), rank)
        assert sum(plan.slot_lengths) == 3 * 64


@pytest.mark.parametrize("size", [8, 32])
def test_a_rank_that_sees_all_keys_among_others_that_see_few_needs_no_more_slots(size):
    """Windows, and one token that sees all: its rank must not hold the sums of all pieces at once."""
    pieces = cut_pieces(Sharding.contiguous(64 * size, size), SCHEDULES["ring"])
    needed = np.eye(size, dtype=bool) | np.eye(size, k=-1, dtype=bool)
    needed[0] = True
    for rank in range(size):
        assert len(plan_gradients(SCHEDULES["ring"], pieces, needed, rank).slot_lengths) <= 4


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", TRAVELLING)
def test_a_piece_that_meets_all_ranks_has_as_many_gradient_hops(name, size):
    pieces = cut_pieces(Sharding.contiguous(5 * size, size), SCHEDULES[name])
    plans = plans_of(SCHEDULES[name], pieces, np.ones((size, len(pieces)), bool))
    sends = Counter(
        load // 2
        for walk, _ in plans
        for step in walk.steps
        for hop in step.hops
        if hop.cargo == GRADIENTS
        for load, _ in hop.sends
    )
    assert [sends[piece] for piece in range(len(pieces))] == [size if size > 1 else 0] * len(pieces)


def test_what_the_owner_alone_has_worked_on_never_travels():
    """Documents that lie on one rank each: the mask leaves the diagonal of needs."""
    pieces = cut_pieces(Sharding.contiguous(12, 4), SCHEDULES["ring"])
    for walk, plan in plans_of(SCHEDULES["ring"], pieces, np.eye(4, dtype=bool)):
        assert not any(step.hops for step in walk.steps)
        assert plan.home == {walk.rank: made(walk.rank)}


def test_a_piece_that_only_others_need_comes_home_from_the_last_of_them():
    pieces = cut_pieces(Sharding.contiguous(12, 4), SCHEDULES["ring"])
    needed = np.zeros((4, 4), bool)
    needed[[1, 3], 0] = True
    walk = Walk(pieces, plans_of(SCHEDULES["ring"], pieces, needed))
    walk.run()
    assert walk.plans[0][1].home == {0: arrived(0)}
    assert walk.slot(0, arrived(0)).read(arrived(0)) == Counter([1, 3])
