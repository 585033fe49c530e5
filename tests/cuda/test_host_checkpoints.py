"""Passes on devices that stop and go on: their state is that of a pass on the host, and no bit changes."""

import numpy as np
import pytest

from ringmpi import Mask, Sharding
from ringmpi.backends.cuda.attend import CudaBackend
from ringmpi.core.problem import pose_problem
from ringmpi.core.scoring import Scoring
from ringmpi.core.stages import BACKWARD, FORWARD
from tests.attempts import Run, Stop
from tests.cuda.emulated import EmulatedDevice
from tests.cuda.numpy_runner import NumpyRunner
from tests.tolerances import assert_attention, assert_gradients

LENGTH, HEADS, DIM = 36, (4, 2), 6
STOPS = [Stop(FORWARD, (1, 2, 3), 0), Stop(BACKWARD, (2, 2, 2), 1), Stop(BACKWARD, (0, 0, 0), 2)]


def arrays():
    """grad_output, q, k, v."""
    rng = np.random.default_rng(0)
    heads = HEADS[0], HEADS[0], HEADS[1], HEADS[1]
    return tuple(rng.standard_normal((1, count, LENGTH, DIM)).astype(np.float32) for count in heads)


def run(travel):
    """A run on an emulated device, in small calls."""
    backend = CudaBackend(EmulatedDevice(runner=NumpyRunner()))
    backend.call_budget = lambda heads, dtype: 40
    return Run(arrays(), backend, travel)


def problem(ranks, schedule="ring"):
    sharding = Sharding.contiguous(LENGTH, ranks)
    return pose_problem(arrays()[1:], mask=Mask.causal(), queries=sharding, keys=sharding, schedule=schedule)


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: f"{stop.stage}-{stop.step}")
@pytest.mark.parametrize("travel", ["keys", "queries"])
def test_the_same_layout_gives_the_same_bits(stop, travel):
    never_stopped, stopped = run(travel).attempt(problem(3)), run(travel)
    assert stopped.attempt(problem(3), stop) is None
    for found, expected in zip(stopped.attempt(problem(3)), never_stopped, strict=True):
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: f"{stop.stage}-{stop.step}")
def test_other_ranks_go_on_to_the_same_numbers(stop):
    attempts = run("keys")
    assert attempts.attempt(problem(3), stop) is None
    output, log_sum_exp, *gradients = attempts.attempt(problem(2, "bidirectional"))
    allowed, scoring = Mask.causal().allowed(LENGTH, LENGTH), Scoring(DIM**-0.5)
    assert_attention((output, log_sum_exp), *arrays()[1:], allowed, scoring)
    assert_gradients((*gradients, None, None), *arrays(), allowed, scoring)
