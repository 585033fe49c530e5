"""Weights survive the page: what its script decodes is what was measured."""

from base64 import b64decode

import numpy as np
import pytest

from ringmpi.report.quantised import CELLS, DECADES, MOST_CELLS, as_text, cells_a_side, map_data, quantised

STEP = 0.5 * np.log(10.0**DECADES) / 65534  # half a step, as a part of the weight


def decoded(steps, low, high):
    """As report.js has it."""
    return np.where(steps > 0, low * (high / low) ** ((steps - 1.0) / 65534), 0.0)


def test_weights_come_back_within_half_a_step(rng):
    weights = 10 ** rng.uniform(-5.9, 0, (3, 7, 5))
    weights[0, 0, 1] = 0
    steps, low, high = quantised(weights)
    back = decoded(steps, low, high)
    assert back[0, 0, 1] == 0
    there = weights > 0
    assert np.abs(back[there] / weights[there] - 1).max() <= 1.001 * STEP


def test_no_weight_and_little_weight_differ():
    steps, low, high = quantised(np.array([0.0, 1e-12, 1.0]))
    assert steps.tolist() == [0, 1, 65535]
    assert (low, high) == (1e-6, 1.0)


@pytest.mark.parametrize("weights", [np.zeros((1, 2, 2)), np.full((1, 2, 2), 0.25), np.full((1, 2, 2), np.nan)])
def test_maps_without_a_range(weights):
    steps, low, high = quantised(weights)
    assert 0 < low < high
    np.testing.assert_allclose(decoded(steps, low, high), np.nan_to_num(weights), rtol=1e-12)


@pytest.mark.parametrize("maps", [1, 2, 10, 33, 257])
def test_the_page_stays_small(maps):
    side = cells_a_side(maps)
    assert 1 < side <= MOST_CELLS
    assert maps * side**2 <= CELLS
    weights = np.ones((maps, side, side))
    assert len(map_data(["x"] * maps, weights, ([0], [0]), np.zeros((256, 3), np.uint8))["steps"]) < 1_700_000


def test_bytes_are_little_endian():
    assert b64decode(as_text(np.array([1, 256], np.uint16))) == bytes([1, 0, 0, 1])


def test_what_the_script_gets():
    weights = np.array([[[1.0, 0.0], [0.5, 0.5]]])
    data = map_data(["head 0"], weights, ([0, 3, 5], [0, 4, 5]), np.zeros((256, 3), np.uint8))
    steps = np.frombuffer(b64decode(data["steps"]), "<u2").reshape(weights.shape)
    np.testing.assert_allclose(decoded(steps, data["low"], data["high"]), weights, rtol=1e-12)
    assert (data["queries"], data["keys"], data["names"]) == ([0, 3, 5], [0, 4, 5], ["head 0"])
