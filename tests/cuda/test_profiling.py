"""Ranges for profilers: ring steps and launches have names, and each range that begins also ends. CuPy is emulated."""

import re
from contextlib import nullcontext

import numpy as np
import pytest

import ringmpi.backends
from ringmpi import Mask, attention, attention_backward, attention_map
from ringmpi.backends.cuda.cupy_device import CupyDevice
from ringmpi.backends.cuda.memory import DeviceMemory
from ringmpi.errors import BackendError
from tests.cuda.emulated import EmulatedDevice
from tests.cuda.emulated_cupy import ILLEGAL_ADDRESS, EmulatedCupy
from tests.cuda.numpy_runner import NumpyRunner

RANKS = 3


class Ranges:
    """cupy.cuda.nvtx, where its library is there."""

    def __init__(self):
        self.open, self.seen = [], []  # seen: each range, with those around it

    def RangePush(self, name):  # noqa: N802 - the name that CuPy has
        self.open.append(name)
        self.seen.append(tuple(self.open))

    def RangePop(self):  # noqa: N802
        self.open.pop()  # an error where none is open


@pytest.fixture
def ranges(monkeypatch):
    """Of the backend "cuda" on an emulated device of its own."""
    device, found = EmulatedDevice(runner=NumpyRunner()), Ranges()
    monkeypatch.setattr(device, "_nvtx", found)
    monkeypatch.setattr("tests.cuda.emulated.device", lambda: device)
    monkeypatch.setitem(ringmpi.backends._OPENERS, "cuda", ("tests.cuda.emulated", "emulated"))
    found.cupy = device.cupy
    return found


def arrays():
    rng = np.random.default_rng(1)
    return [rng.standard_normal((2, 24, 8)).astype(np.float32) for _ in range(4)]


OPTIONS = {"mask": Mask.causal(), "ranks": RANKS, "backend": "cuda"}


def steps_of(ranges):
    """Outer ranges in the order of their first appearance, and what lies in them."""
    assert ranges.open == []
    steps = [around[0] for around in ranges.seen if len(around) == 1]
    inside = [around for around in ranges.seen if len(around) > 1]
    assert all(len(around) == 2 for around in inside)
    return list(dict.fromkeys(steps)), {re.sub(", ring.*", "", step): kernel for step, kernel in inside}


def test_each_ring_step_is_a_range_with_its_kernels_inside(ranges):
    grad_output, q, k, v = arrays()
    out = attention(q, k, v, **OPTIONS)
    steps, inside = steps_of(ranges)
    assert steps == [f"forward, ring step {n} of {RANKS}" for n in (1, 2, 3)]
    assert inside == {"forward": "output-float32-32"}
    ranges.seen.clear()
    attention_backward(grad_output, q, k, v, out, **OPTIONS)
    steps, inside = steps_of(ranges)
    assert len(steps) >= RANKS
    assert all(step.startswith("backward, ring step ") for step in steps if "add" not in step)
    assert inside == {"backward": "gradient-float32-32"}
    ranges.seen.clear()
    attention_map(q, k, out.log_sum_exp, block=8, **OPTIONS)
    steps, inside = steps_of(ranges)
    assert steps == [f"map, ring step {n} of {RANKS}" for n in (1, 2, 3)]
    assert inside == {"map": "gradient-float32-32"}


def test_ranges_end_where_a_kernel_fails(ranges):
    ranges.cupy.runner = lambda *told: setattr(ranges.cupy, "status", ILLEGAL_ADDRESS)
    with pytest.raises(BackendError, match="cudaErrorIllegalAddress"):
        attention(*arrays()[1:], **OPTIONS)
    assert ranges.seen[:2] == [("forward, ring step 1 of 3",), ("forward, ring step 1 of 3", "output-float32-32")]
    assert ranges.open == []


def test_ranges_end_where_a_run_is_interrupted(ranges):
    def interrupted(*told):
        raise KeyboardInterrupt

    ranges.cupy.runner = interrupted
    with pytest.raises(KeyboardInterrupt):
        attention(*arrays()[1:], **OPTIONS)
    assert ranges.seen
    assert ranges.open == []


@pytest.mark.parametrize("nvtx", ["there", "empty", "missing"])
def test_launches_are_ranges_where_profilers_are_there(nvtx):
    """CuPy has the module in any case; without the library nothing is in it."""
    cupy, ranges = EmulatedCupy(NumpyRunner()), Ranges()
    if nvtx == "there":
        cupy.cuda.nvtx = ranges
    elif nvtx == "missing":
        del cupy.cuda.nvtx
    memory = DeviceMemory(CupyDevice(cupy, 0, cupy.compiled))
    array = memory.put(np.ones(4, np.float32))
    memory.add(array, array)
    np.testing.assert_array_equal(memory.get(array), 2)
    assert ranges.seen == ([("add-float32",)] if nvtx == "there" else [])
    assert ranges.open == []
    assert isinstance(memory.named("step"), nullcontext) == (nvtx != "there")
