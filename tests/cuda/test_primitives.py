"""Each primitive: its assembly, as NVRTC passes it on and an interpreter of PTX executes it, against its emulation."""

import numpy as np
import pytest

from tests.cuda.eager import EagerDevice
from tests.cuda.emulated import EMULATED
from tests.cuda.libraries import LibraryRunner
from tests.cuda.probes import PRIMITIVES, assert_same, run
from tests.cuda.ptx.runner import PtxRunner

pytestmark = pytest.mark.skipif(not EMULATED, reason="make gates: the kernels of a GPU, emulated")


@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_assembly_does_what_its_emulation_does(primitive):
    by_assembly = run(primitive, EagerDevice(PtxRunner()))
    assert by_assembly.any()
    assert_same(primitive, by_assembly, run(primitive, EagerDevice(LibraryRunner())))


@pytest.mark.parametrize("primitive", ["MULTIPLY_F16", "MULTIPLY_BF16"])
def test_both_cut_sums_of_16_bit_products_off_in_the_same_way(primitive):
    devices = EagerDevice(PtxRunner()), EagerDevice(LibraryRunner())
    by_assembly, by_emulation = (run(primitive, device) for device in devices)
    np.testing.assert_array_equal(by_assembly, by_emulation)


def test_another_number_is_seen():
    found = run("EXCHANGE", EagerDevice(LibraryRunner()))
    with pytest.raises(AssertionError):
        assert_same("EXCHANGE", found ^ np.uint32(1), found)
