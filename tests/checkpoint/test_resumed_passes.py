"""Passes that stop anywhere and go on: on the same layout to the same bits, on any other to the same numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringmpi import Mask, Sharding
from ringmpi.backends import get_backend
from ringmpi.checkpoint.past import stages_of
from ringmpi.core.problem import pose_problem
from ringmpi.core.rank_work import RankWork
from ringmpi.core.scoring import Scoring
from ringmpi.core.sharding import shardings_by_name
from ringmpi.errors import StorageError
from tests.attempts import Run, Stop
from tests.backends.natives import needs_native
from tests.strategies import masks, shardings
from tests.tolerances import assert_attention, assert_gradients

HEADS = 4, 2
DIM = 8


def small_calls(name, budget):
    """A backend whose calls are so small that a visit takes several."""
    backend = get_backend(name)
    backend.call_budget = lambda heads, dtype: budget
    return backend


def arrays_of(query_length, key_length, dtype=np.float64):
    rng = np.random.default_rng(0)
    shapes = ((HEADS[0], query_length), (HEADS[0], query_length), (HEADS[1], key_length), (HEADS[1], key_length))
    return tuple(rng.standard_normal((1, *shape, DIM)).astype(dtype) for shape in shapes)


def pose(arrays, mask, queries, keys, schedule, **options):
    return pose_problem(arrays[1:], mask=mask, queries=queries, keys=keys, schedule=schedule, **options)


def without_gaps(sharding):
    return all(r.step == 1 or len(r) == 1 for shard in sharding.shards for r in shard)


@st.composite
def layouts(draw, lengths, mask):
    """Shardings that slices can speak of, and a schedule."""
    size = draw(st.integers(1, 5))
    plain = shardings(lengths[0], size, mask, lengths[1]).filter(without_gaps)
    return (
        draw(plain),
        draw(shardings(lengths[1], size).filter(without_gaps)),
        draw(st.sampled_from(["ring", "bidirectional", "all-gather"])),
    )


@st.composite
def histories(draw):
    """(lengths, mask, layouts of all attempts, stops of all but the last, travel, budget)."""
    lengths = draw(st.integers(0, 24)), draw(st.integers(0, 24))
    mask = draw(masks(*lengths))
    many = draw(st.integers(2, 4))
    stops = [
        (draw(st.integers(0, 1)), draw(st.tuples(*[st.integers(0, 12)] * 5)), draw(st.integers(0, 5)))
        for _ in range(many - 1)
    ]
    return (
        lengths,
        mask,
        [draw(layouts(lengths, mask)) for _ in range(many)],
        stops,
        draw(st.sampled_from(["keys", "queries"])),
        draw(st.integers(1, 60)),
    )


def next_stop(run, problem, stop):
    """Not in a pass that is over."""
    which, calls, step = stop
    stages = stages_of(problem, run.travel)
    left = stages[stages.index(run.manifest.progress["stage"]) :] if run.manifest else stages
    return Stop(left[which % len(left)], calls, step)


@settings(max_examples=40)
@given(histories())
def test_any_history_ends_with_each_pair_attended_once(history):
    """Stopped up to three times in either pass, every time on other ranks: exact as integers, right as numbers."""
    lengths, mask, ways, stops, travel, budget = history
    arrays = arrays_of(*lengths)
    run, found = Run(arrays, small_calls("numpy", budget), travel), None
    for (queries, keys, schedule), stop in zip(ways, [*stops, None], strict=True):
        problem = pose(arrays, mask, queries, keys, schedule)
        found = run.attempt(problem, stop and next_stop(run, problem, stop))
    asked = mask.pairs(*lengths) * HEADS[0]
    assert run.pairs["backward"] == asked
    assert run.pairs.get("forward", asked) == asked
    output, log_sum_exp, *gradients = found
    allowed, scoring = mask.allowed(*lengths), Scoring(DIM**-0.5)
    assert_attention((output, log_sum_exp), *arrays[1:], allowed, scoring)
    assert_gradients((*gradients, None, None), *arrays, allowed, scoring)


@settings(max_examples=20)
@given(histories(), st.booleans())
def test_the_same_layout_gives_the_same_bits(history, striped):
    """Wherever it stopped, and however often."""
    lengths, mask, ways, stops, travel, budget = history
    queries, keys, schedule = ways[0]
    if striped:
        queries, keys = (Sharding.striped(length, queries.size) for length in lengths)
    arrays = arrays_of(*lengths, dtype=np.float32)
    problem = pose(arrays, mask, queries, keys, schedule)
    whole = Run(arrays, small_calls("numpy", budget), travel).attempt(problem)
    run = Run(arrays, small_calls("numpy", budget), travel)
    for stop in stops:
        run.attempt(problem, next_stop(run, problem, stop))
    for expected, array in zip(whole, run.attempt(problem), strict=True):
        assert array.tobytes() == expected.tobytes()


@needs_native
@pytest.mark.parametrize("schedule", ["broadcast"])
@settings(max_examples=15)
@given(st.data())
def test_reproducible_passes_give_the_same_bits_on_any_ranks(schedule, data):
    """Both of its backward passes stop between visits, so what is left is whole blocks."""
    length = data.draw(st.integers(1, 200))
    mask = data.draw(masks(length, length))
    arrays = arrays_of(length, length, np.float32)
    backend = small_calls("native", data.draw(st.integers(1, 2000)))

    def problem():
        name = data.draw(st.sampled_from(["contiguous", "zigzag", "striped", "balanced"]))
        queries, keys = shardings_by_name(name, mask, length, length, data.draw(st.integers(1, 4)), block=16)
        return pose(arrays, mask, queries, keys, schedule, reproducible=True)

    whole = Run(arrays, backend, "auto").attempt(problem())
    run = Run(arrays, backend, "auto")
    for _ in range(data.draw(st.integers(1, 3))):
        calls = tuple(data.draw(st.integers(0, 20)) for _ in range(4))
        now = problem()
        run.attempt(now, next_stop(run, now, (data.draw(st.integers(0, 2)), calls, 0)))
    found = run.attempt(problem())
    asked = mask.pairs(length, length) * HEADS[0]
    assert {run.pairs.get(stage, asked) for stage in stages_of(problem(), "auto")} == {asked}
    for expected, array in zip(whole, found, strict=True):
        assert array.tobytes() == expected.tobytes()


def stopped_run(queries, keys, *, travel=None, stop):
    arrays, mask = arrays_of(40, 40), Mask.causal()
    run = Run(arrays, small_calls("numpy", 20), travel)
    problem = pose(arrays, mask, queries, keys, "ring")
    assert run.attempt(problem, stop) is None
    return run, arrays, mask


def test_single_positions_go_on_with_the_same_ranks_only():
    striped = Sharding.striped(40, 3)
    run, arrays, mask = stopped_run(striped, striped, stop=Stop("forward", (3, 1, 4), 0))
    two = Sharding.contiguous(40, 2)
    with pytest.raises(StorageError, match=r"shards of single positions, .*\(striped on 3 ranks\).*--force"):
        run.attempt(pose(arrays, mask, two, two, "ring"))
    assert run.attempt(pose(arrays, mask, striped, striped, "ring")) is not None


def test_a_file_whose_pairs_are_not_what_it_says_is_refused():
    whole = Sharding.zigzag(40, 3)
    run, arrays, mask = stopped_run(whole, whole, stop=Stop("forward", (3, 1, 4), 0))
    wrong = run.manifest.files[1].model_copy(update={"pairs": run.manifest.files[1].pairs + 1})
    run.manifest = run.manifest.model_copy(update={"files": (run.manifest.files[0], wrong, run.manifest.files[2])})
    with pytest.raises(StorageError, match=r"rank-00001.h5: the kernels counted .* pairs, but"):
        run.attempt(pose(arrays, mask, whole, whole, "ring"))


def test_pieces_that_nobody_needs_any_more_do_not_travel():
    """On the same layout, at the end of a pass: the last visits are left, and so are their hops alone."""
    from ringmpi.passes.forward_pass import ForwardPass
    from ringmpi.passes.visits import VISITED, Start

    owned = Sharding.contiguous(40, 4)
    problem = pose(arrays_of(40, 40), Mask.full(), owned, owned, "ring")
    pairs = RankWork(problem, 0).pairs()
    start = Start(cursor=np.full(4, VISITED))
    start.cursor[3] = 0
    needed = np.stack([start.left(pairs)] * 4)
    one = ForwardPass(problem, 0, small_calls("numpy", 20), pairs, needed)
    loads = {load for step in one.itinerary.steps for hop in step.hops for load, _ in (*hop.sends, *hop.receives)}
    assert loads == {3}


def test_the_rest_of_a_problem_is_a_problem():
    """`absorbed` changes what is left to do, not what is asked."""
    owned = Sharding.contiguous(40, 4)
    problem = pose(arrays_of(40, 40), Mask.causal(), owned, owned, "ring")
    rest = problem.without(np.array([[0, 40, 0, 10, -99, 99]], np.int64))
    assert rest.whole_mask is problem.whole_mask, "resolved once"
    assert problem.without(None) is problem
    assert len(problem.without(problem.whole_mask).slices) == 0
    assert rest.pairs_asked == problem.pairs_asked
    assert sum(int(RankWork(rest, rank).pairs().sum()) for rank in range(4)) == 30 * 31 // 2
    assert rest.fingerprint() != problem.fingerprint()
    assert rest.meaning() == problem.meaning()
