"""The judge of maps against the formula written out: one matrix of weights."""

import numpy as np
import pytest

from ringmpi.core.reference import KeySlab
from ringmpi.core.reference_map import BlockWeights
from ringmpi.core.scoring import Scoring
from tests.dense import dense_map, dense_weights

ROWS, KEYS, BLOCK = 7, 11, 4
SCORING = Scoring(0.5)


@pytest.fixture
def inputs():
    rng = np.random.default_rng(0)
    allowed = rng.random((ROWS, KEYS)) < 0.6
    allowed[2] = False
    q, k = rng.standard_normal((1, 2, ROWS, 3)), rng.standard_normal((1, 1, KEYS, 3))
    return q, k, allowed


def weights(q, k, allowed, sink=-np.inf):
    e = np.where(allowed, np.exp(0.5 * (q @ k.swapaxes(-1, -2))), 0)
    total = e.sum(-1, keepdims=True) + np.exp(np.asarray(sink))
    return e / np.where(total == 0, 1, total)


@pytest.mark.parametrize("sinks", [None, [0.7, -np.inf]])
def test_weights_are_those_of_the_formula(inputs, sinks):
    expected = weights(*inputs, -np.inf if sinks is None else np.array(sinks)[:, None, None])
    found, log_sum_exp = dense_weights(*inputs, SCORING, sink_logits=sinks, dtype=np.float64)
    np.testing.assert_allclose(found, expected, atol=1e-15)
    assert (found[:, :, 2] == 0).all()
    assert np.isneginf(log_sum_exp[0, 1, 2])
    q, k, allowed = inputs
    rows = BlockWeights(q, np.arange(ROWS), SCORING, block=BLOCK, keys=KEYS)
    rows.absorb(KeySlab(range(KEYS), allowed, k, k))
    blocks, _ = rows.finish(sinks)
    by_hand = [expected[..., start : start + BLOCK].sum(-1) for start in range(0, KEYS, BLOCK)]
    np.testing.assert_allclose(blocks, np.stack(by_hand, -1), atol=1e-15)


def test_slabs_in_any_order_give_the_same(inputs):
    q, k, allowed = inputs
    rows = BlockWeights(q, np.arange(ROWS), SCORING, block=BLOCK, keys=KEYS)
    for part in (range(9, 11), range(0, 3), range(3, 3), range(3, 9)):
        keys = slice(part.start, part.stop)
        rows.absorb(KeySlab(part, allowed[:, keys], k[:, :, keys], k[:, :, keys]))
    whole, _ = dense_weights(*inputs, SCORING, dtype=np.float64)
    expected = [whole[..., start : start + BLOCK].sum(-1) for start in range(0, KEYS, BLOCK)]
    np.testing.assert_allclose(rows.finish()[0], np.stack(expected, -1), atol=1e-15)


def test_a_map_averages_over_rows_that_see_a_key(inputs):
    found = dense_map(weights(*inputs), inputs[2], 3)
    assert found.shape == (1, 2, 3, KEYS)
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-14)


def test_nan_reaches_what_its_row_sees_and_no_more(inputs):
    q, k, allowed = inputs
    k[0, 0, 5] = np.nan
    found, _ = dense_weights(q, k, allowed, SCORING, dtype=np.float64)
    assert (np.isnan(found) == (allowed & allowed[:, 5, None])).all()
