"""Each thing that a watched build can see, seen once: a kernel with a fault in it is refused, and says why."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.cuda.emulated import EMULATED
from tests.cuda.libraries import EMULATOR, EmulatorError, KernelLibrary, build

pytestmark = pytest.mark.skipif(not EMULATED, reason="make gates: the kernels of a GPU, emulated")

KERNEL = SimpleNamespace(name="ringmpi::faulty", label="faulty", source="faulty.cuh")
THREADS, SHARED_BYTES = 128, 512
FAULTS = {  # as in emulator/faulty.cuh, from 1 on: what is said of each
    "NO_BARRIER": "race",
    "WRITE_WHILE_READ": "race",
    "SHARED_OUT_OF_BOUNDS": "byte 512 of 512 bytes of shared memory",
    "GLOBAL_READ_OUT_OF_BOUNDS": "read of global memory out of bounds",
    "GLOBAL_WRITE_OUT_OF_BOUNDS": "write of global memory out of bounds",
    "DIFFERENT_BARRIERS": "at different barriers",
    "NOT_ALL_AT_BARRIER": "nobody can go on",
    "LANES_HAVE_PARTED": "lanes of a warp have parted",
    "NEVER_WRITTEN": "nobody has written it",
    "COPY_NOT_WAITED_FOR": "a copy on its way",
    "COPY_WAITED_FOR_TOO_LITTLE": "a copy on its way",
    "COPY_SEEN_BY_OTHERS": "race",
    "COPY_NOT_COMMITTED": "a copy was never committed",
    "COPY_AT_THE_END": "a copy is still on its way when its thread ends",
    "COPY_ONTO_READ": "race",
    "COPY_NOT_ALIGNED": "multiples of 16",
    "COPY_OUT_OF_BOUNDS": "out of bounds",
}


def run(fault):
    """What the kernel leaves of 0, 1, ..., 127."""
    numbers = np.zeros(THREADS + 8, np.float32)
    numbers = numbers[-numbers.ctypes.data % 16 // 4 :][:THREADS]
    numbers[:] = np.arange(THREADS)
    argument = np.array((numbers.ctypes.data, fault), np.dtype([("numbers", "u8"), ("fault", "i4")], align=True))
    bounds = np.array([[numbers.ctypes.data, numbers.ctypes.data + numbers.nbytes]], np.uint64)
    library = KernelLibrary(build(KERNEL, watch=True))
    library.launch(KERNEL.name, (1, THREADS), argument, SHARED_BYTES, bounds, watch=True)
    return numbers


def test_without_a_fault_nothing_is_said():
    np.testing.assert_array_equal(run(0), np.arange(THREADS)[::-1])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault):
    with pytest.raises(EmulatorError, match=FAULTS[fault]):
        run(1 + list(FAULTS).index(fault))


def test_names_are_those_of_the_kernel():
    text = (EMULATOR / "faulty.cuh").read_text(encoding="utf-8")
    names = [
        line.split(",")[0].strip() for line in text.split("enum Fault {")[1].split("}")[0].split("\n") if "," in line
    ]
    assert names == ["NONE", *FAULTS]
