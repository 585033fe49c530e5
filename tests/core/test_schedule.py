"""Schedules and itineraries: who meets what when, what travels, and in which slot it lies meanwhile."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi import Sharding
from ringmpi.core.itinerary import plan_itinerary
from ringmpi.core.schedule import SCHEDULES, comes, cut_pieces, homes, last_needed, schedule_by_name
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


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_rank_i_holds_block_i_minus_s_at_step_s(size):
    """Liu et al. 2023: P steps, and every query meets every key once."""
    pieces = cut_pieces(Sharding.contiguous(5 * size, size), SCHEDULES["ring"])
    for step in range(size):
        rank, _, _ = SCHEDULES["ring"].visits(*homes(pieces), step, size)
        assert [(int(i), piece.owner) for i, piece in zip(rank, pieces, strict=True)] == [
            ((j + step) % size, j) for j in range(size)
        ]
        assert all(piece.owner == (i - step) % size for i, piece in zip(rank.tolist(), pieces, strict=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_every_piece_visits_every_rank_once(name, size):
    schedule = SCHEDULES[name]
    pieces = cut_pieces(Sharding.zigzag(7 * size, size), schedule)
    ranks = np.stack([schedule.visits(*homes(pieces), step, size).rank for step in range(size)])
    assert (np.sort(ranks, axis=0) == np.arange(size)[:, None]).all()
    assert (ranks[0] == homes(pieces)[0]).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_the_step_of_a_visit_and_its_sender_follow_from_the_schedule(name, size):
    schedule = SCHEDULES[name]
    pieces = cut_pieces(Sharding.zigzag(7 * size, size), schedule)
    for step in range(size):
        visits = schedule.visits(*homes(pieces), step, size)
        assert (schedule.step(*homes(pieces), visits.rank, size) == step).all()
        if step:
            sender = schedule.visits(*homes(pieces), step - 1 if schedule.hand_to_hand else 0, size).rank
            assert (visits.source == sender).all()


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
    last, size = last_needed(schedule, pieces, needed), len(needed)
    steps = [schedule.step(*homes(pieces), rank, size) for rank in range(size)]
    kept = np.stack([comes(schedule, step, needs, last) for step, needs in zip(steps, needed, strict=True)])
    assert kept.shape == needed.shape
    return kept


@given(needs())
def test_what_is_needed_arrives_and_nothing_travels_in_vain(drawn):
    schedule, pieces, needed = drawn
    kept = taking_place(schedule, pieces, needed)
    assert (kept | ~needed).all()
    for step in range(1, len(needed)):
        rank, source, _ = schedule.visits(*homes(pieces), step, len(needed))
        for piece in range(len(pieces)):
            if kept[rank[piece], piece]:
                assert kept[source[piece], piece]
                later = [schedule.visits(*homes(pieces), after, len(needed)) for after in range(step + 1, len(needed))]
                passes_on = any(v.source[piece] == rank[piece] and kept[v.rank[piece], piece] for v in later)
                assert needed[rank[piece], piece] or passes_on


@given(needs(), st.booleans())
def test_itineraries_fit_together(drawn, donated):
    """Every message has one sender and one receiver that list it at the same place; every need is met once."""
    schedule, pieces, needed = drawn
    size = len(needed)
    plans = [plan_itinerary(schedule, pieces, needed, rank, donated=donated) for rank in range(size)]
    sent, received = {}, {}
    for rank, plan in enumerate(plans):
        assert [step.index for step in plan.steps] == list(range(size))
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


def test_under_a_causal_mask_contiguous_keys_stop_at_the_last_rank():
    """Earlier queries never see later keys: piece j makes P-1-j hops, half of all."""
    size, schedule = 8, SCHEDULES["ring"]
    pieces = cut_pieces(Sharding.contiguous(size * 4, size), schedule)
    needed = np.tri(size, dtype=bool)  # rank r needs the pieces up to its own
    assert taking_place(schedule, pieces, needed).sum() - len(pieces) == size * (size - 1) // 2


def test_an_unknown_schedule_is_refused_with_the_known_ones():
    with pytest.raises(ShapeError, match="known are ring, bidirectional, all-gather"):
        schedule_by_name("double-ring")
