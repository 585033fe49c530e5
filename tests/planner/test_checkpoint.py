"""What checkpoints weigh, against the arrays that a pass would save; and how often they pay, against brute force."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ringmpi import Mask, Sharding
from ringmpi.backends import get_backend
from ringmpi.core.dtypes import bfloat16
from ringmpi.core.problem import pose_problem
from ringmpi.planner.checkpoint import Keeping, best_interval, plan_checkpoint
from tests.attempts import Run, Stop


@pytest.mark.parametrize("dtype", [bfloat16, np.dtype(np.float32), np.dtype(np.float64)], ids=str)
@pytest.mark.parametrize("travel", ["keys", "queries"])
def test_bytes_are_those_of_the_arrays_that_are_saved(dtype, travel):
    """Forward of the largest rank; backward of all, where every sum has been begun."""
    rng = np.random.default_rng(0)
    shapes = ((1, 4, 37, 6), (1, 4, 37, 8), (1, 2, 29, 8), (1, 2, 29, 6))
    arrays = tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)
    queries, keys = Sharding.contiguous(37, 3), Sharding.contiguous(29, 3)
    problem = pose_problem(arrays[1:], mask=Mask.full(), queries=queries, keys=keys, schedule="ring")
    planned = plan_checkpoint(problem, Keeping(), 3, gradients=True)
    run = Run(arrays, get_backend("numpy"), travel)
    run.attempt(problem, Stop("forward", (1, 1, 1), 0))
    forward = [sum(array.nbytes for array in held.arrays.values()) for held in run.files.values()]
    assert planned.rank_bytes == max(forward)
    run = Run(arrays, get_backend("numpy"), travel)
    run.attempt(problem, Stop("backward", (), 0))
    backward = sum(array.nbytes for held in run.files.values() for array in held.arrays.values())
    assert planned.total_bytes == max(backward, sum(forward))
    queries, keys = Sharding.contiguous(37, 4), Sharding.contiguous(29, 4)
    run.attempt(replace(problem, queries=queries, keys=keys), Stop("backward", (), 2))
    most = sum(array.nbytes for held in run.files.values() for array in held.arrays.values())
    assert backward < most <= planned.most_bytes
    assert travel == "keys" or most == planned.most_bytes, "queries are larger"


def test_seconds_and_interval_need_to_know_the_machine():
    arrays = (np.zeros((2, 100, 8), np.float32),) * 3
    owned = Sharding.contiguous(100, 4)
    problem = pose_problem(arrays, mask=Mask.full(), queries=owned, keys=owned, schedule="ring")
    plans = [
        plan_checkpoint(problem, keeping, 4, gradients=False)
        for keeping in (Keeping(), Keeping(disk=1e3), Keeping(disk=1e3, node_mtbf=4e6))
    ]
    assert [plan.total_bytes for plan in plans] == [2 * 100 * 10 * 4] * 3
    assert [plan.seconds for plan in plans] == [None, 8.0, 8.0]
    assert [plan.interval for plan in plans] == [None, None, best_interval(8.0, 1e6)]


def expected_seconds(interval, cost, mtbf):
    """Of one second of work, with failures at random (exponential times) that lose all since the last save."""
    return mtbf * math.expm1((interval + cost) / mtbf) / interval


@pytest.mark.parametrize(("cost", "mtbf"), [(1, 1e6), (30, 86400), (60, 3600), (600, 7200)])
def test_the_interval_costs_least(cost, mtbf):
    """Against the best of many intervals under the model of Daly's paper, which it is derived from."""
    tried = np.geomspace(cost / 10, 10 * mtbf, 4000)
    least = min(expected_seconds(interval, cost, mtbf) for interval in tried)
    found = best_interval(cost, mtbf)
    assert expected_seconds(found, cost, mtbf) < least * 1.0005
    assert found == pytest.approx(math.sqrt(2 * cost * mtbf), rel=math.sqrt(cost / mtbf)), "Young, for rare failures"


def test_where_a_save_takes_longer_than_the_time_between_failures():
    assert best_interval(100, 40) == 40
