"""The kernel that adds what has arrived: its numbers (compile_table.py has what NVRTC makes of it)."""

import numpy as np
import pytest

from ringmpi.backends.cuda.addition import ARGUMENT, EVERY_ADDITION, MOST_BLOCKS, THREADS, Addition
from ringmpi.backends.cuda.compiler import KERNELS
from ringmpi.backends.cuda.memory import DeviceMemory
from tests.cuda.emulated import emulated


@pytest.mark.parametrize("kernel", EVERY_ADDITION, ids=str)
def test_sums_are_added_on_the_device(kernel):
    """By the kernel itself where kernels are built (`make gates`). Not a whole block of threads, and several."""
    memory = DeviceMemory(emulated().device)
    for count in (1, THREADS - 1, 3 * THREADS + 5):
        a, b = (np.random.default_rng(seed).standard_normal((1, 1, 1, count)).astype(kernel.dtype) for seed in (1, 2))
        there = memory.put(a)
        memory.add(there, memory.put(b))
        assert memory.get(there).tobytes() == (a + b).tobytes()
    nothing = memory.put(np.zeros((1, 1, 0, 3), kernel.dtype))
    memory.add(nothing, nothing)


def test_more_than_all_blocks_are_added_too():
    """Each block goes on with what none has done: here one block, with work for three."""
    device = emulated().device
    memory = DeviceMemory(device)
    ones = np.ones((1, 1, 1, 3 * THREADS), np.float32)
    there, other = memory.put(ones), memory.put(ones)
    device.launch(Addition(ones.dtype), 1, THREADS, np.array((there.ptr, other.ptr, ones.size, 1), ARGUMENT))
    np.testing.assert_array_equal(memory.get(there), 2)
    assert MOST_BLOCKS * THREADS < 2**31


def test_host_and_kernel_agree_on_the_threads_of_a_block():
    assert f"ADD_THREADS = {THREADS};" in (KERNELS / "add.cuh").read_text(encoding="utf-8")
