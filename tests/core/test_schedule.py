"""Schedules and itineraries: who meets what when, what travels, and in which slot it lies meanwhile."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi import Mask, Sharding
from ringmpi.core.itinerary import plan_itinerary
from ringmpi.core.schedule import SCHEDULES, cut_pieces, plan_route, schedule_by_name
from ringmpi.errors import ShapeError
from tests.strategies import LENGTHS, RANKS, SCHEDULE_NAMES, shardings

NAMES = sorted(SCHEDULES)


@st.composite
def needs(draw):
    """(schedule, pieces, which rank needs which piece)."""
    size, length = draw(RANKS), draw(LENGTHS)
    schedule = SCHEDULES[draw(SCHEDULE_NAMES)]
    pieces = cut_pieces(draw(shardings(length, size)), schedule)
    cells = draw(st.lists(st.booleans(), min_size=size * len(pieces), max_size=size * len(pieces)))
    needed = np.array(cells, bool).reshape(size, len(pieces)) & np.array([p.length > 0 for p in pieces], bool)
    return schedule, pieces, needed


def everywhere(schedule, pieces, size):
    """The Route of pieces that everybody needs, and its Visits of all pieces at the ranks 0 to size - 1."""
    route = plan_route(schedule, pieces, np.ones((size, len(pieces)), bool))
    every = np.arange(len(pieces))
    return route, [route.visits(every, route.distance(rank)) for rank in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_rank_i_holds_block_i_minus_s_at_step_s(size):
    """Liu et al. 2023: P steps, and every query meets every key once."""
    pieces = cut_pieces(Sharding.contiguous(5 * size, size), SCHEDULES["ring"])
    route, visits = everywhere(SCHEDULES["ring"], pieces, size)
    assert route.steps == size
    for rank, visit in enumerate(visits):
        for piece, step in zip(pieces, visit.step.tolist(), strict=True):
            assert piece.owner == (rank - step) % size


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_in_a_broadcast_all_ranks_meet_all_blocks_in_ascending_order(size):
    """Whatever the layout, rank r meets block n in the nth step after the lead, and so do all others."""
    for sharding in (Sharding.zigzag(61, size, block=4), Sharding.balanced(Mask.causal(), size, length=61, block=4)):
        pieces = cut_pieces(sharding, SCHEDULES["broadcast"])
        assert [piece.ranges for piece in pieces] == [(range(n, min(n + 4, 61)),) for n in range(0, 61, 4)]
        route, visits = everywhere(SCHEDULES["broadcast"], pieces, size)
        assert route.steps == len(pieces) + route.lead
        for visit in visits:
            assert (visit.step == route.lead + np.arange(len(pieces))).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_a_visit_begins_at_home_or_with_a_message_from_a_rank_that_has_the_piece(name, size):
    schedule = SCHEDULES[name]
    pieces = cut_pieces(Sharding.zigzag(7 * size, size), schedule)
    route, visits = everywhere(schedule, pieces, size)
    for rank, visit in enumerate(visits):
        for piece, (source, sent_at, due, step) in enumerate(zip(*(column.tolist() for column in visit), strict=True)):
            if rank == pieces[piece].owner:
                continue
            assert 0 <= sent_at < due <= step < route.steps
            assert source == pieces[piece].owner or visits[source].due[piece] <= sent_at


@given(LENGTHS, RANKS, SCHEDULE_NAMES, st.data())
def test_pieces_hold_every_position_of_a_shard_once(length, size, name, data):
    sharding = data.draw(shardings(length, size))
    pieces = cut_pieces(sharding, SCHEDULES[name])
    for rank in range(size):
        local = np.full(sharding.shard_length(rank), -1)
        for piece in pieces:
            if piece.owner == rank:
                for part, start in zip(piece.ranges, piece.starts, strict=True):
                    assert (local[start : start + len(part)] == -1).all()
                    local[start : start + len(part)] = part
        assert (local == sharding.positions(rank)).all()


def test_a_shard_of_many_ranges_travels_as_one_piece():
    runs = [range(start, start + 1) for start in range(0, 12, 2)]
    others = [range(start, start + 1) for start in range(1, 12, 2)]
    pieces = cut_pieces(Sharding.from_ranges(12, [runs, others]), SCHEDULES["bidirectional"])
    assert [(piece.owner, piece.direction) for piece in pieces] == [(0, 1), (0, -1), (1, 1), (1, -1)]


def taking_place(schedule, pieces, needed):
    """bool [size, pieces]: which rank gets which piece."""
    route = plan_route(schedule, pieces, needed)
    kept = np.stack([route.comes(route.distance(rank), needs) for rank, needs in enumerate(needed)])
    assert kept.shape == needed.shape
    return kept


@given(needs())
def test_what_is_needed_arrives_and_nothing_travels_in_vain(drawn):
    schedule, pieces, needed = drawn
    kept, route, every = taking_place(schedule, pieces, needed), plan_route(*drawn), np.arange(len(pieces))
    assert (kept | ~needed).all()
    sources = [route.visits(every, route.distance(rank)).source for rank in range(len(needed))]
    for rank, piece in np.argwhere(kept).tolist():
        assert rank == pieces[piece].owner or kept[sources[rank][piece], piece]
        others = [r for r in range(len(needed)) if r not in (rank, pieces[piece].owner)]
        passes_on = any(sources[r][piece] == rank and kept[r, piece] for r in others)
        assert needed[rank, piece] or passes_on


@given(needs(), st.booleans())
def test_itineraries_fit_together(drawn, donated):
    """Every message has one sender and one receiver that list it at the same place; every need is met once."""
    schedule, pieces, needed = drawn
    size = len(needed)
    plans = [plan_itinerary(schedule, pieces, needed, rank, donated=donated) for rank in range(size)]
    sent, received = {}, {}
    for rank, plan in enumerate(plans):
        assert [step.index for step in plan.steps] == list(range(plan_route(*drawn).steps))
        met = [piece for step in plan.steps for piece in step.visits]
        assert sorted(met) == np.flatnonzero(needed[rank]).tolist()
        for step in plan.steps:
            for hop in step.hops:
                for piece, peer in hop.sends:
                    sent.setdefault((step.index, hop.due, rank, peer), []).append(piece)
                for piece, peer in hop.receives:
                    received.setdefault((step.index, hop.due, peer, rank), []).append(piece)
    assert sent == received


@given(needs(), st.booleans())
def test_a_slot_holds_one_piece_at_a_time_and_only_what_has_arrived_is_used(drawn, donated):
    schedule, pieces, needed = drawn
    for rank in range(len(needed)):
        plan = plan_itinerary(schedule, pieces, needed, rank, donated=donated)
        slots = dict.fromkeys(range(len(plan.slot_lengths)))
        here = set(plan.own)
        busy = {}  # slot -> step before which it must not be written
        if donated:
            slots.update({plan.slot_of[piece]: piece for piece in plan.own})
            assert len({plan.slot_of[piece] for piece in plan.own}) == len(plan.own)
        else:
            assert not here & set(plan.slot_of)
        arriving = {}
        for step in plan.steps:
            here |= set(arriving.pop(step.index, ()))
            for hop in step.hops:
                for piece, _ in hop.receives:
                    slot = plan.slot_of[piece]
                    assert busy.get(slot, 0) <= step.index, "a slot is received into while it is in use"
                    assert pieces[piece].length <= plan.slot_lengths[slot]
                    here.discard(slots[slot])
                    slots[slot] = piece
                    busy[slot] = hop.due
                    arriving.setdefault(hop.due, []).append(piece)
                for piece, _ in hop.sends:
                    assert piece in here, "a piece is sent before it is here"
                    if piece in plan.slot_of:
                        busy[plan.slot_of[piece]] = max(busy.get(plan.slot_of[piece], 0), hop.due)
            for piece in step.visits:
                assert piece in here, "a piece is attended to before it is here"
                if piece in plan.slot_of:
                    busy[plan.slot_of[piece]] = max(busy.get(plan.slot_of[piece], 0), step.index + 1)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 16])
def test_a_ring_needs_two_slots_a_piece_whatever_the_rank_count(size):
    def slots(name, donated):
        schedule = SCHEDULES[name]
        pieces = cut_pieces(Sharding.contiguous(64 * size, size), schedule)
        plan = plan_itinerary(schedule, pieces, np.ones((size, len(pieces)), bool), size // 2, donated=donated)
        return sum(plan.slot_lengths) / 64

    assert slots("ring", False) == min(2, size - 1)
    assert slots("ring", True) == min(2, size)
    assert slots("bidirectional", True) == min(2, size)
    assert slots("all-gather", False) == size - 1


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("blocks", [1, 4, 40])
def test_a_broadcast_needs_as_many_slots_as_ranks_however_long_the_sequence(size, blocks):
    """Blocks wait for their turn: one that goes to all P ranks is sent off P - 1 steps before."""
    schedule = SCHEDULES["broadcast"]
    pieces = cut_pieces(Sharding.contiguous(4 * blocks * size, size, block=4), schedule)
    plan = plan_itinerary(schedule, pieces, np.ones((size, len(pieces)), bool), 0)
    assert len(plan.slot_lengths) == min(size, blocks * (size - 1))
    assert set(plan.slot_lengths) == {4}


def test_blocks_that_only_neighbours_need_wait_for_one_step():
    """A window: the lead follows from who needs what."""
    schedule = SCHEDULES["broadcast"]
    pieces = cut_pieces(Sharding.contiguous(128, 8, block=4), schedule)
    owner = np.array([piece.owner for piece in pieces])
    needed = (owner == np.arange(8)[:, None]) | (owner + 1 == np.arange(8)[:, None])
    assert plan_route(schedule, pieces, needed).lead == 1
    assert len(plan_itinerary(schedule, pieces, needed, 5).slot_lengths) == 2


def test_under_a_causal_mask_contiguous_keys_stop_at_the_last_rank():
    """Earlier queries never see later keys: piece j makes P-1-j hops, half of all."""
    size, schedule = 8, SCHEDULES["ring"]
    pieces = cut_pieces(Sharding.contiguous(size * 4, size), schedule)
    needed = np.tri(size, dtype=bool)  # rank r needs the pieces up to its own
    assert taking_place(schedule, pieces, needed).sum() - len(pieces) == size * (size - 1) // 2


def test_an_unknown_schedule_is_refused_with_the_known_ones():
    with pytest.raises(ShapeError, match="choose one of ring, bidirectional, all-gather, broadcast"):
        schedule_by_name("double-ring")
