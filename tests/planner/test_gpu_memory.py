"""Memory of GPUs as it is planned, against what passes on emulated ones ask for."""

import ml_dtypes
import numpy as np
import pytest

from ringmpi import Mask, Sharding
from ringmpi.backends.cuda.attend import CudaBackend
from ringmpi.comm.local import LocalRing
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.gradients import Saved
from ringmpi.core.problem import pose_problem
from ringmpi.core.rank_work import RankWork
from ringmpi.passes.backward_pass import BackwardPass
from ringmpi.passes.forward_pass import ForwardPass
from ringmpi.passes.travel import Operands, ways_by_name
from ringmpi.planner.backward import plan_backward
from ringmpi.planner.gpu_memory import gpu_forward
from ringmpi.planner.plan import make_plan, ranks_that_fit
from tests.cuda.emulated import EmulatedDevice
from tests.cuda.numpy_runner import NumpyRunner

LENGTH, DIMS = 48, (11, 13)
TABLES = 2_000  # bytes: work and pair counts of one call


def posed(ranks, schedule="ring", dtype=np.float16):
    rng = np.random.default_rng(0)
    shapes = (4, DIMS[0]), (2, DIMS[0]), (2, DIMS[1])
    arrays = [rng.standard_normal((1, heads, LENGTH, dim)).astype(dtype) for heads, dim in shapes]
    sharding = Sharding.zigzag(LENGTH, ranks)
    return pose_problem(arrays, mask=Mask.full(), queries=sharding, keys=sharding, schedule=schedule), arrays


def devices(ranks):
    return [CudaBackend(EmulatedDevice(runner=NumpyRunner())) for _ in range(ranks)]


@pytest.mark.parametrize("schedule", ["ring", "bidirectional", "all-gather", "broadcast"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("gradients", [False, True])
def test_a_forward_pass_asks_for_what_is_planned(schedule, dtype, gradients):
    ranks = 4
    (problem, (q, k, v)), backends = posed(ranks, schedule, dtype), devices(4)
    pairs = np.stack([RankWork(problem, rank).pairs() for rank in range(ranks)])
    ring, loops, planned = LocalRing(ranks), [], []
    for rank, (comm, backend) in enumerate(zip(ring.ranks, backends, strict=True)):
        forward = ForwardPass(problem, rank, backend, pairs[rank], pairs > 0, donated=not gradients)
        planned.append(gpu_forward(problem, forward.itinerary, gradients=gradients))
        mine = [problem.keys.select(array, rank) for array in (k, v)]
        if gradients:
            forward.adopt(*mine)
        else:
            backend.device.download = None  # what lies there is of any contents: nobody may copy it down
            rooms = forward.own_rooms()
            del backend.device.download
            forward.fill_own([tuple(np.ones_like(room) for room in payload) for payload in rooms])
        loops.append(forward.loop(comm, problem.queries.select(q, rank), np.ones(ranks, bool)))
    ring.drive(loops)
    for backend, plan in zip(backends, planned, strict=True):
        peak = backend.device.cupy.peak
        assert plan.peak <= peak <= plan.peak + TABLES
        assert backend.device.cupy.pinned <= plan.pinned
    assert sum(backend.device.cupy.pinned for backend in backends) > 0.5 * sum(plan.pinned for plan in planned)


@pytest.mark.parametrize("schedule", ["ring", "bidirectional", "broadcast"])
@pytest.mark.parametrize("travel", ["keys", "queries"])
def test_a_backward_pass_asks_for_what_is_planned(schedule, travel):
    ranks, (problem, (q, k, v)) = 3, posed(3, schedule)
    in_order, wide = problem.schedule.in_order, accumulate_dtype(problem.dtype)
    ways = [ways_by_name("auto" if in_order else travel, problem, rank) for rank in range(ranks)]
    ways = [way[int(in_order and travel == "queries")] for way in ways]
    pairs, backends = np.stack([way.work.pairs() for way in ways]), devices(ranks)
    ring, loops = LocalRing(ranks), []
    for rank, (comm, backend) in enumerate(zip(ring.ranks, backends, strict=True)):
        one = BackwardPass(problem, backend, ways[rank], pairs[rank], pairs > 0)
        query, key, value = problem.queries.select(q, rank), *(problem.keys.select(array, rank) for array in (k, v))
        rows = np.zeros(query.shape[:3], wide)
        saved = Saved(np.zeros((*query.shape[:3], DIMS[1]), problem.dtype), rows, rows)
        loops.append(one.loop(comm, Operands(query, key, value, saved), np.ones(ranks, bool)))
    ring.drive(loops)
    plan = plan_backward(problem, "auto" if in_order else travel, range(ranks), None)
    needed = (plan.keys if travel == "keys" else plan.queries).gpu
    peak = max(backend.device.cupy.peak for backend in backends)
    assert needed.peak <= peak <= needed.peak + TABLES
    assert max(backend.device.cupy.pinned for backend in backends) <= needed.pinned


def test_rows_are_filled_up_to_16_bytes():
    problem, _ = posed(1)
    plan = make_plan(problem, on_gpus=True).gpu
    assert plan.resident == 4 * LENGTH * 32  # 11 numbers of 2 bytes
    assert plan.sums == 4 * LENGTH * (DIMS[1] + 2) * 4


def test_what_fits_is_judged_by_the_memory_of_gpus():
    problem, _ = posed(1)
    on_one = make_plan(problem, on_gpus=True).peak
    assert ranks_that_fit(problem, "zigzag", on_one, on_gpus=True) == 1
    assert ranks_that_fit(problem, "zigzag", on_one - 1, on_gpus=True) > 1
    assert make_plan(problem).gpu is None
