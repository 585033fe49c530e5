"""What has been absorbed and what is left of a mask: against sets of pairs, for any mask and any part of it."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringmpi import Mask, Sharding
from ringmpi.core import absorbed
from ringmpi.core.absorbed import pairs_within, part_of_visit, rectangles, rest_of, slices_of_work
from ringmpi.core.problem import Problem
from ringmpi.core.rank_work import RankWork
from ringmpi.core.schedule import SCHEDULES
from ringmpi.core.scoring import Scoring
from ringmpi.core.shapes import HeadShape
from ringmpi.core.slices import K0, LOW, NO_SLICES, Q0, Q1, count_pairs
from ringmpi.core.work import NO_WORK, cut
from tests.strategies import LENGTHS, masks, rings

FAR = 1 << 60
row = st.tuples(*[st.integers(0, 45)] * 4, st.integers(-45, 45), st.integers(-45, 45))


def dense(slices, query_length, key_length):
    """How often each pair is in a table, int [queries, keys]; said in its own words."""
    i, j = np.arange(query_length)[:, None], np.arange(key_length)
    counts = np.zeros((query_length, key_length), int)
    for q0, q1, k0, k1, low, high in slices.tolist():
        counts += (i >= q0) & (i < q1) & (j >= k0) & (j < k1) & (j - i >= low) & (j - i <= high)
    return counts


@st.composite
def questions(draw):
    """(mask, lengths, some slices that may overlap and lie beyond the mask)."""
    lengths = draw(LENGTHS), draw(LENGTHS)
    some = draw(st.lists(row, max_size=8))
    return draw(masks(*lengths)), lengths, np.array(some, np.int64).reshape(-1, 6)


@given(questions())
def test_the_rest_is_the_mask_without_what_has_been_absorbed(question):
    mask, lengths, some = question
    slices = mask.resolve(*lengths)
    left, gone = dense(rest_of(slices, some), *lengths), dense(some, *lengths) > 0
    whole = mask.allowed(*lengths)
    assert (left == (whole & ~gone)).all(), "each pair that is left is there once, and no other"
    assert pairs_within(some, slices) == (whole & gone).sum()


@given(questions())
def test_the_rest_keeps_the_order_of_the_mask(question):
    """A row meets the slices of the mask in one order, whatever is gone of them: so sums keep theirs."""
    mask, lengths, some = question
    slices = mask.resolve(*lengths)
    rest = rest_of(slices, some)
    parents = [
        np.flatnonzero(
            [dense(np.array([fragment]), *lengths)[dense(parent[None], *lengths) > 0].any() for parent in slices]
        )
        for fragment in rest
    ]
    assert all(len(found) == 1 for found in parents), "a fragment lies in one slice of the mask"
    assert (np.diff(np.concatenate([[0], *parents])) >= 0).all()


def test_a_row_meets_what_is_left_in_the_order_of_the_mask():
    """Rows 0 to 7 of the first slice are gone, so that what is left of it begins below the second one."""
    mask = np.array([[0, 12, 0, 5, -FAR, FAR], [4, 12, 6, 9, -FAR, FAR]], np.int64)
    rest = rest_of(mask, np.array([[0, 8, 0, 5, -FAR, FAR]], np.int64))
    assert rest[:, [Q0, K0]].tolist() == [[8, 0], [4, 6], [8, 6]]


BLOCK = 5
BLOCKS = st.lists(st.tuples(*[st.integers(0, 9)] * 4), max_size=8)


@example(Mask.window(4, 8), [(0, 9, 0, 4), (0, 9, 5, 4)])
@given(masks(45, 45), BLOCKS)
def test_within_a_block_all_or_nothing_is_left_of_a_slice(mask, boxes):
    """Whole blocks are gone: a slice is not cut where it bends, so sums within a block stay as they were."""
    slices = mask.resolve(45, 45)
    gone = [[BLOCK * q, BLOCK * (q + m), BLOCK * k, BLOCK * (k + n), -FAR, FAR] for q, m, k, n in boxes]
    rest = rest_of(slices, np.array(gone, np.int64).reshape(-1, 6))
    fragments = [dense(np.array([one]), 45, 45) > 0 for one in rest]
    for parent in (dense(np.array([one]), 45, 45) > 0 for one in slices):
        cells = np.array([_by_block(fragment & parent) for fragment in fragments]).reshape(-1, 9, 9)
        assert (cells.sum(axis=0) <= 1).all()


def _by_block(pairs):
    """Which blocks x blocks hold any of the pairs."""
    return pairs.reshape(9, BLOCK, 9, BLOCK).any(axis=(1, 3)).astype(int)


def test_neighbouring_slices_of_a_mask_are_not_made_one():
    """Cut at the same edge they look like one slice; each must stay where it was."""
    mask = np.array([[0, 4, 0, 9, -FAR, FAR], [4, 8, 0, 9, -FAR, FAR]], np.int64)
    rest = rest_of(mask, np.array([[0, 8, 5, 9, -FAR, FAR]], np.int64))
    assert rest[:, [Q0, Q1]].tolist() == [[0, 4], [4, 8]]


def test_nothing_and_everything():
    slices = Mask.causal().resolve(9, 9)
    assert rest_of(slices, NO_SLICES).tolist() == slices.tolist()
    assert len(rest_of(slices, slices)) == 0
    assert pairs_within(slices, slices) == 45
    assert len(rest_of(NO_SLICES, slices)) == 0


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=5))
def test_rectangles_hold_all_rows_and_keys_once(runs):
    ranges = [range(start, start + length) for start, length in dict(runs).items()]
    apart = [r for n, r in enumerate(ranges) if not any(set(r) & set(other) for other in ranges[:n])]
    found = rectangles(apart, [range(2, 5), range(5, 9), range(20, 21)])
    rows = {position for r in apart for position in r}
    assert (
        dense(found, 40, 40) == np.isin(np.arange(40), list(rows))[:, None] * np.isin(np.arange(40), [*range(2, 9), 20])
    ).all()
    assert len(found) <= 2 * len(apart), "ranges that touch are one"


def test_what_slices_cannot_say_is_said():
    assert rectangles([range(0, 10, 2)], [range(3)]) is None
    assert rectangles([range(0, 1, 2)], [range(3, 4, 5)]).tolist() == [[0, 1, 3, 4, -FAR, FAR]], (
        "one position has no gap"
    )
    many = [range(2 * n, 2 * n + 1) for n in range(absorbed.MOST_SLICES + 1)]
    assert rectangles(many, [range(3)]) is None
    assert rectangles(many[1:], [range(3)]) is not None


def problem_on(ring):
    return Problem(
        HeadShape(1, 1, 1, 1, 1),
        np.dtype(np.float32),
        ring["mask"],
        ring["sharding"],
        ring["key_sharding"],
        SCHEDULES[ring["schedule"]],
        Scoring(1.0),
    )


@given(rings(), st.integers(1, 60), st.data())
def test_calls_as_slices_are_the_pairs_of_the_calls(ring, budget, data):
    """Some of the calls of some visit: the same pairs, each once; None where positions have gaps."""
    lengths, size = ring["lengths"], ring["ranks"]
    problem = problem_on(ring)
    rank = data.draw(st.integers(0, size - 1))
    work = RankWork(problem, rank)
    for piece, visitor in enumerate(problem.pieces):
        calls = cut(work.table(piece), budget)
        done = calls[: data.draw(st.integers(0, len(calls)))]
        found = slices_of_work(np.concatenate([NO_WORK, *done]))
        expected = np.zeros(lengths, int)
        rows = problem.queries.positions(rank)
        keys = np.concatenate([np.empty(0, int), *(np.array(r, int) for r in visitor.ranges)])
        for u0, u1, v0, v1, *_, low, high in (item for call in done for item in call.tolist()):
            i, j = np.meshgrid(rows[u0:u1], keys[v0:v1], indexing="ij")
            inside = (j - i >= low) & (j - i <= high)
            np.add.at(expected, (i[inside], j[inside]), 1)
        if found is None:
            assert any(r.step > 1 and len(r) > 1 for r in (*problem.queries.shards[rank], *visitor.ranges))
        else:
            assert (dense(found, *lengths) == expected).all()


@given(rings(), st.integers(1, 60), st.data())
def test_a_visit_under_way_is_said_by_rows_that_are_over(ring, budget, data):
    """Within the mask it is what was attended to, neither more nor less."""
    lengths = ring["lengths"]
    problem = problem_on(ring)
    rank = data.draw(st.integers(0, ring["ranks"] - 1))
    rows, work = problem.queries.shards[rank], RankWork(problem, rank)
    for piece, visitor in enumerate(problem.pieces):
        calls = cut(work.table(piece), budget)
        made = data.draw(st.integers(0, len(calls)))
        done, left = (np.concatenate([NO_WORK, *some]) for some in (calls[:made], calls[made:]))
        found, met = part_of_visit(done, left, rows, visitor.ranges), slices_of_work(done)
        if met is not None and found is not None:
            within_mask = (dense(found, *lengths) > 0) & problem.mask.allowed(*lengths)
            assert (within_mask == (dense(met, *lengths) > 0)).all()


def test_thousands_of_documents_in_one_visit_are_a_few_slices():
    """A save in the middle of a visit must not forbid other rank counts."""
    documents, length = 3 * absorbed.MOST_SLICES, 4
    whole = Sharding.contiguous(documents * length, 1)
    mask = Mask.documents([length] * documents, within=Mask.causal())
    ring = {"mask": mask, "sharding": whole, "key_sharding": whole, "schedule": "ring"}
    problem = problem_on(ring)
    calls = cut(RankWork(problem, 0).table(0), 1000)
    made = 2 * len(calls) // 3
    done, left = np.concatenate(calls[:made]), np.concatenate(calls[made:])
    found = part_of_visit(done, left, whole.shards[0], problem.pieces[0].ranges)
    assert len(found) < 10
    assert len(done) > absorbed.MOST_SLICES
    assert pairs_within(found, problem.slices) == count_pairs(slices_of_part(done)).sum()


def slices_of_part(done):
    """`slices_of_work` a part at a time, however many there are."""
    return np.concatenate([slices_of_work(part) for part in np.array_split(done, 9)])


@pytest.mark.parametrize("documents", [1, 40])
def test_a_rest_of_a_rest_is_what_is_left_of_both(documents):
    """Restarts add up: what one run after the other has absorbed is one table."""
    mask = Mask.documents([25] * (1000 // 25) if documents > 1 else [1000], within=Mask.causal())
    slices = mask.resolve(1000, 1000)
    done = [rectangles([r], [range(0, 400)]) for shard in Sharding.zigzag(1000, 3).shards for r in shard]
    more = [rectangles([r], [range(300, 700)]) for shard in Sharding.contiguous(1000, 2).shards for r in shard]
    both = np.concatenate([*done, *more])
    at_once = rest_of(slices, both)
    in_turn = rest_of(rest_of(slices, np.concatenate(done)), np.concatenate(more))
    assert count_pairs(at_once).sum() == count_pairs(in_turn).sum()
    assert pairs_within(at_once, in_turn) == count_pairs(in_turn).sum() == (mask.allowed(1000, 1000)[:, 700:]).sum()
    assert (at_once[:, LOW] <= at_once[:, LOW + 1]).all()
