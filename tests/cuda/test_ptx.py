"""Whole kernels by their assembly: the PTX that NVRTC makes, interpreted, gives the attention of the plain formula.

The emulated build never sees the text of the assembly; this one sees nothing else. So faults in it are seeded here.
"""

import numpy as np
import pytest

from ringmpi.backends.cuda.attend import CudaBackend
from ringmpi.backends.cuda.memory import DeviceMemory
from ringmpi.core.dtypes import SUPPORTED, bfloat16
from tests.cuda.cases import PLAIN, Case, carried, gradients
from tests.cuda.eager import EagerDevice
from tests.cuda.emulated import EMULATED
from tests.cuda.judging import backward_ratio, forward_ratio
from tests.cuda.ptx.memory import PtxError
from tests.cuda.ptx.runner import PtxRunner, Replacement

pytestmark = pytest.mark.skipif(not EMULATED, reason="make gates: the kernels of a GPU, by their assembly")
SMALL = (70, 90)
HALF, DOUBLE = np.dtype(np.float16), np.dtype(np.float64)
CASES = (
    *(Case(dtype, 64, lengths=SMALL) for dtype in SUPPORTED),
    *(Case(dtype, 64, rounded=True, lengths=SMALL) for dtype in (HALF, bfloat16)),
    Case(HALF, 64, plain=True, lengths=SMALL),
    Case(HALF, 192, lengths=SMALL),
)
FAULTS = {
    "operands of a conversion exchanged": Replacement(
        r"(cvt\.rn\.b?f16x2\.f32\s+%\w+,\s*)(%\w+),\s*(%\w+);", r"\1\3, \2;"
    ),
    "a transposing load that does not": Replacement(r"\.x4\.trans\b", ".x4"),
    "a copy not waited for": Replacement(r"cp\.async\.wait_group\s+(\d+);", "cp.async.wait_group 2;"),
    "no zeros beyond the end of an array": Replacement(r"(cp\.async\.cg[^;]*?, 16), %\w+;", r"\1;"),
    "a product of the other type": Replacement(r"f32\.f16\.f16\.f32", "f32.bf16.bf16.f32"),
    "rows of a factor exchanged": Replacement(r"(mma[^{;]*m16n8k16[^{;]*\{[^}]*\},\s*\{)(%\w+), (%\w+)", r"\1\3, \2"),
    "factors of a product exchanged": Replacement(
        r"(mma[^{;]*m8n8k4[^{;]*\{[^}]*\},\s*)(\{[^}]*\}),\s*(\{[^}]*\})", r"\1\3, \2"
    ),
    "an exponential without its sign": Replacement(r"neg\.f64(\s+%\w+,)", r"abs.f64\1"),
}
OF_DOUBLE = {"factors of a product exchanged", "an exponential without its sign"}


def backend(case, fault=None):
    runner = PtxRunner(fault)
    return CudaBackend(EagerDevice(runner), rounded=case.rounded), runner


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels_by_their_assembly_are_those_of_the_plain_formula(case):
    device = backend(case)[0]
    partial, pairs = carried(device, case, 2)
    into, counted = gradients(device, case, partial)
    assert counted == pairs == 2 * case.meeting().allowed.sum()
    assert forward_ratio(case, partial) <= 1
    assert backward_ratio(case, into) <= 1


@pytest.mark.parametrize("dtype", [HALF, DOUBLE], ids=str)
def test_nan_behind_the_mask_stays_there(dtype):
    case = Case(dtype, 32, plain=True, lengths=SMALL)
    device, meeting = backend(case)[0], case.meeting()
    q, k, v, _ = case.inputs()
    plain, _ = device.attend(q, k, v, meeting.work, PLAIN)
    unseen = ~meeting.allowed[:20].any(0)
    for array in (k, v):
        array[:, :, unseen] = np.nan
    found, _ = device.attend(q, k, v, meeting.work, PLAIN, finite=False)
    assert (found.weighted_sum[:, :, :20] == plain.weighted_sum[:, :, :20]).all()
    assert np.isnan(found.weighted_sum[:, :, meeting.allowed[:, unseen].any(1)]).all()


@pytest.mark.parametrize("part", ["forward", "backward"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_assembly_is_seen(fault, part):
    case = Case(DOUBLE if fault in OF_DOUBLE else HALF, 32, lengths=SMALL)
    sound, (faulty, runner) = backend(case)[0], backend(case, FAULTS[fault])
    partial = carried(sound, case, 2)[0]
    try:
        with np.errstate(all="ignore"):
            if part == "forward":
                ratio = forward_ratio(case, carried(faulty, case, 2)[0])
            else:
                ratio = backward_ratio(case, gradients(faulty, case, partial)[0])
    except PtxError:
        ratio = np.inf
    assert runner.replaced, "nothing to replace: the test does not see the assembly that it is about"
    assert not ratio <= 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_sums_that_arrive_are_added(dtype, rng):
    memory = DeviceMemory(EagerDevice(PtxRunner()))
    own, other = (rng.standard_normal((2, 3, 71)).astype(dtype) for _ in range(2))
    there = memory.put(own)
    memory.add(there, memory.put(other))
    np.testing.assert_array_equal(memory.get(there), own + other)
