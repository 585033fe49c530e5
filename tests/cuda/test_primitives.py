"""Each primitive: its assembly, as NVRTC passes it on and an interpreter of PTX executes it, against its emulation."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.cuda.emulated import EMULATED, device
from tests.cuda.ptx import execute

pytestmark = pytest.mark.skipif(not EMULATED, reason="make gates: the kernels of a GPU, emulated")

PRIMITIVES = (
    "MULTIPLY_F16",
    "MULTIPLY_BF16",
    "MULTIPLY_F64",
    "LOAD",
    "LOAD_TRANSPOSED",
    "COPY",
    "PACK_F16",
    "PACK_BF16",
    "EXCHANGE",
    "ARITHMETIC",
)


def probe(primitive):
    """As an instance (ringmpi/backends/cuda/instances.py), as far as compilers need one."""
    return SimpleNamespace(name=f"ringmpi::probe<ringmpi::{primitive}>", label=f"probe-{primitive}", source="probe.cuh")


def words(primitive, rng):
    """[32, 16]: what the lanes get; numbers where bits are read as such."""
    drawn = rng.integers(0, 1 << 32, (32, 16), np.uint32)
    if primitive == "MULTIPLY_F64":
        drawn[:, :8] = rng.standard_normal((32, 4)).view(np.uint32)
    if primitive in ("PACK_F16", "PACK_BF16", "ARITHMETIC"):
        drawn[:, :3] = rng.standard_normal((32, 3), np.float32).view(np.uint32)
    if primitive == "PACK_F16":
        drawn[:, 2] &= 0x7BFF  # a number, as the bits of NaN may differ
    if primitive in ("MULTIPLY_F16", "MULTIPLY_BF16"):
        drawn[:, 6:10] = rng.standard_normal((32, 4), np.float32).view(np.uint32)
        narrow = rng.standard_normal((32, 12), np.float32)
        upper = narrow.view(np.uint32) >> 16  # bfloat16
        halves = narrow.astype(np.float16).view(np.uint16).astype(np.uint32) if primitive == "MULTIPLY_F16" else upper
        drawn[:, :6] = halves[:, ::2] | halves[:, 1::2] << 16
    return drawn


def emulate(primitive, given):
    found = np.zeros_like(given)
    on_device = [device().cupy.asarray(array) for array in (given, found)]
    argument = np.array([array.data.ptr for array in on_device], np.uint64)
    device().kernel(probe(primitive))((1,), (32,), (argument,), shared_mem=2048)
    return on_device[1].get()


@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_assembly_does_what_its_emulation_does(rng, primitive):
    pytest.importorskip("cuda.bindings.nvrtc", reason="no NVRTC here; make gates installs it")
    from ringmpi.backends.cuda.compiler import compile_kernel

    given = words(primitive, rng)
    ptx = compile_kernel(probe(primitive), "sm_80", "ptx")[0].decode()
    by_assembly, by_emulation = execute(ptx, given), emulate(primitive, given)
    assert by_assembly.any()
    if primitive.startswith("MULTIPLY"):
        kind = np.float64 if primitive == "MULTIPLY_F64" else np.float32
        np.testing.assert_allclose(by_assembly.view(kind), by_emulation.view(kind), rtol=1e-5, atol=1e-6)
    elif primitive == "ARITHMETIC":
        np.testing.assert_allclose(by_assembly[:, :3].view("f4"), by_emulation[:, :3].view("f4"), rtol=1e-6)
        np.testing.assert_array_equal(by_assembly[:, 3:], by_emulation[:, 3:])
    else:
        np.testing.assert_array_equal(by_assembly, by_emulation)
