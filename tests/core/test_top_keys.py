"""The top keys of chosen rows, rank by rank and together, against the plain formula and a stable sort."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi import Mask, Sharding
from ringmpi.core import top_keys
from ringmpi.core.problem import pose_problem
from ringmpi.core.reference import KeySlab, allowed_scores
from ringmpi.core.top_keys import ChosenRows, TopKeys, check_rows, merged_top_keys, top_keys_of
from ringmpi.errors import ShapeError
from tests.strategies import LENGTHS, masks, shardings

COUNT = 4


def few_numbers(rng, *shape):
    """Small whole numbers: many keys have equal scores, exactly."""
    return rng.integers(-1, 2, shape).astype(np.float32)


def expected_keys(problem, q, k, rows):
    """Positions and scores by the judge's formula; -1 where a row sees fewer."""
    allowed = problem.mask.allowed(problem.queries.length, problem.keys.length)[rows]
    keys = range(problem.keys.length)
    scores = allowed_scores(q[:, :, rows].astype(np.float64), rows, KeySlab(keys, allowed, k, k), problem.scoring)
    scores = np.concatenate([scores, np.full((*scores.shape[:3], COUNT), -np.inf)], -1)
    order = np.argsort(-scores, axis=-1, kind="stable")[..., :COUNT]
    best = np.take_along_axis(scores, order, -1)
    return np.where(np.isneginf(best), -1, order), best


def found_keys(problem, q, k, rows):
    chosen = ChosenRows(rows, q[:, :, rows])
    parts = [top_keys_of(problem, rank, chosen, problem.keys.select(k, rank), COUNT) for rank in range(problem.size)]
    return merged_top_keys(parts, COUNT)


@given(st.integers(1, 40), LENGTHS, st.integers(1, 5), st.integers(1, 60), st.data())
def test_any_rows_on_any_ranks_have_the_keys_of_the_formula(queries, keys, ranks, at_once, data):
    """Equal scores among them: the first keys win, whoever holds them, however many are looked at together."""
    mask, rng = data.draw(masks(queries, keys)), np.random.default_rng(1)
    q, k = few_numbers(rng, 1, 4, queries, 8), few_numbers(rng, 1, 2, keys, 8)
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, queries - 1), min_size=1, max_size=6))))
    where = {"queries": data.draw(shardings(queries, ranks)), "keys": data.draw(shardings(keys, ranks))}
    problem = pose_problem((q, k, k), mask=mask, scale=0.5, **where)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top_keys, "SCORES_AT_ONCE", at_once)
        found = found_keys(problem, q, k, rows)
    positions, scores = expected_keys(problem, q, k, rows)
    assert (found.keys == positions).all()
    assert (found.scores == scores).all()


@pytest.mark.parametrize("options", [{"softcap": 1.5}, {"alibi_slopes": [0.3, 0.1, 0.0, 0.05]}, {"dropout": 0.4}])
def test_scores_are_capped_and_biased_and_never_dropped(options):
    rng, rows = np.random.default_rng(2), np.array([0, 50, 99])
    q, k = (rng.standard_normal((1, heads, 100, 16)).astype(np.float32) for heads in (4, 2))
    sharding = Sharding.striped(100, 3)
    problem = pose_problem((q, k, k), mask=Mask.causal(), queries=sharding, keys=sharding, **options)
    found = found_keys(problem, q, k, rows)
    positions, scores = expected_keys(problem, q, k, rows)
    assert (found.keys == positions).all()
    finite = np.isfinite(scores)
    np.testing.assert_allclose(found.scores[finite], scores[finite], rtol=1e-12)


def test_equal_keys_have_equal_scores_in_any_place():
    """A product that summed the last keys of a chunk in another order would let a later key win."""
    rng = np.random.default_rng(3)
    q, k = (rng.standard_normal((1, 1, 997, 64)).astype(np.float32) for _ in range(2))
    k[:, :, 1::3] = k[:, :, :1]
    q, rows = (k[:, :, :1] + 0.1 * q).astype(np.float32), np.array([0, 500, 996])
    for sharding in (Sharding.contiguous(997, 1), Sharding.striped(997, 7), Sharding.zigzag(997, 3)):
        problem = pose_problem((q, k, k), mask=Mask.full(), queries=sharding, keys=sharding)
        found = found_keys(problem, q, k, rows)
        assert (found.keys[0, 0] == [0, 1, 4, 7]).all()


def test_weights_are_those_of_log_sum_exp():
    best = TopKeys(np.array([[[[3, 7, -1]]]]), np.array([[[[1.0, 0.5, -np.inf]]]]))
    np.testing.assert_array_equal(best.weights(np.array([[[1.0]]]))[0, 0, 0], [1, np.exp(-0.5), 0])
    none = TopKeys(np.full((1, 1, 1, 2), -1), np.full((1, 1, 1, 2), -np.inf))
    assert (none.weights(np.full((1, 1, 1), -np.inf)) == 0).all()


@pytest.mark.parametrize("unknown", [np.nan, np.inf])
def test_a_row_that_has_met_nan_or_inf_has_no_top_keys(unknown):
    best = TopKeys(np.array([[[[3, 7], [3, -1]]]]), np.array([[[[unknown, 0.5], [1.0, -np.inf]]]]))
    log_sum_exp = np.array([[[unknown, 1.0]]])
    assert best.weighed(log_sum_exp)[0, 0].tolist() == [[-1, -1], [3, -1]]
    np.testing.assert_array_equal(best.weights(log_sum_exp)[0, 0], [[np.nan, np.nan], [1, 0]])


@pytest.mark.parametrize(
    ("rows", "count", "words"),
    [
        ([3, 100], 1, "0 to 99"),
        ([-1, 5], 1, "0 to 99"),
        ([5, 5], 1, "twice"),
        ([7, 5], 1, "ascending"),
        ([1.5], 1, "whole numbers"),
        ([], 1, "1 to 4,096"),
        ([[1], [2]], 1, "1 to 4,096"),
        ([5], 0, "at least 1"),
    ],
)
def test_rows_that_cannot_be_chosen_are_refused(rows, count, words):
    with pytest.raises(ShapeError, match=words):
        check_rows(np.array(rows), 100, count)
    check_rows(np.array([0, 99]), 100, 1)
