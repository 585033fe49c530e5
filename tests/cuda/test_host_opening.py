"""Which GPU a rank takes, what "auto" takes, and what is said where there is none."""

import logging
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ringmpi.backends
from ringmpi.backends import choose, get_backend
from ringmpi.backends.cuda import opening
from ringmpi.backends.cuda.cupy_device import CupyDevice
from ringmpi.backends.cuda.memory import DeviceMemory
from ringmpi.comm.device_ring import reaching
from ringmpi.comm.protocol import Message
from ringmpi.errors import BackendError
from tests.cuda.emulated_cupy import (
    DEVICES_UNAVAILABLE,
    INSUFFICIENT_DRIVER,
    MEMORY_ALLOCATION,
    CUDARuntimeError,
    EmulatedCupy,
)
from tests.cuda.numpy_runner import NumpyRunner


@pytest.fixture
def cupy(monkeypatch):
    """An emulated CuPy for `import cupy`, and a compiler."""

    def install(**options):
        emulated = EmulatedCupy(NumpyRunner(), **options)
        monkeypatch.setattr(opening, "_cupy", lambda: emulated)
        monkeypatch.setattr(opening, "cached_kernel", emulated.compiled)
        monkeypatch.setattr(opening.compiler, "version", lambda: (13, 0))
        return emulated

    return install


@pytest.mark.parametrize(("local_rank", "count", "index"), [(0, 4, 0), (3, 4, 3), (3, 1, 0), (5, 4, 1)])
def test_gpus_are_dealt_to_the_ranks_of_a_node(cupy, local_rank, count, index):
    """By number on the node: global ranks would leave GPUs of cyclic jobs idle. A rank that is shown one takes it."""
    cupy(capabilities=["80"] * count)
    device = opening.open_device(local_rank)
    assert device.uuid == f"GPU-00000000-0000-0000-0000-{index:012x}"
    assert opening.open_device(local_rank) is device, "streams and memory are made once a process"


def test_a_uuid_that_comes_cut_is_not_taken_for_one(cupy):
    """Two GPUs whose UUID has a byte of 0 are two all the same."""
    emulated = cupy()
    whole = emulated.cuda.runtime.getDeviceProperties
    emulated.cuda.runtime.getDeviceProperties = lambda index: {**whole(index), "uuid": b"\x01"}
    assert CupyDevice(emulated, 0, emulated.compiled).uuid == "GPU at 0000:00:00.0"


def test_without_cupy_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    with pytest.raises(BackendError, match=r'needs CuPy, which is not installed: pip install -e "\.\[cuda13\]"'):
        get_backend("cuda")


def test_a_cupy_that_cannot_be_loaded_is_no_crash(monkeypatch):
    monkeypatch.setattr(opening, "find_spec", lambda name: True)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(BackendError, match="needs CuPy, which cannot be loaded .ModuleNotFoundError"):
        get_backend("cuda")


def test_without_a_driver_it_says_what_cuda_says(cupy):
    def no_driver():
        raise CUDARuntimeError(INSUFFICIENT_DRIVER)

    cupy().cuda.runtime.getDeviceCount = no_driver
    with pytest.raises(BackendError, match=r"finds no GPU \(cudaErrorInsufficientDriver.*Slurm: --gpus"):
        get_backend("cuda")


def test_hidden_gpus_are_none(cupy):
    cupy(capabilities=[])
    with pytest.raises(BackendError, match="CUDA_VISIBLE_DEVICES hides all"):
        get_backend("cuda")


def test_old_gpus_are_refused(cupy):
    cupy(capabilities=["75", "70"])
    with pytest.raises(BackendError, match=r"needs a GPU of compute capability 8.0 or newer.*have 7.5, 7.0"):
        get_backend("cuda")


@pytest.mark.parametrize(("local_rank", "index"), [(0, 1), (1, 3), (2, 1)])
def test_old_gpus_beside_others_are_left_out(cupy, local_rank, index):
    """A display card beside those that compute."""
    cupy(capabilities=["75", "80", "61", "120"])
    assert opening.open_device(local_rank).uuid.endswith(f"{index:012x}")


@pytest.mark.parametrize(("local_rank", "index"), [(0, 0), (1, 2), (2, 0)])
def test_gpus_that_allow_no_process_are_left_out(cupy, local_rank, index):
    cupy(capabilities=["80"] * 3, modes={0: 3, 1: 2})
    assert opening.open_device(local_rank).uuid.endswith(f"{index:012x}")


def test_where_no_gpu_allows_a_process_it_says_so(cupy):
    cupy(capabilities=["75", "90"], modes={1: 2})
    with pytest.raises(BackendError, match=r"have 7.5, 9.0 \(compute mode Prohibited\)"):
        get_backend("cuda")


def test_a_gpu_that_another_process_holds_is_named(cupy):
    """In compute mode Exclusive_Process; two ranks on one GPU, say."""
    emulated = cupy(capabilities=["80"] * 2, modes={1: 3})
    emulated.refused[1] = DEVICES_UNAVAILABLE
    with pytest.raises(BackendError, match=r"^GPU 1 is held by another process, or .* start one rank per GPU") as found:
        opening.open_device(1)
    assert "please report" not in str(found.value)


def test_a_gpu_without_room_for_a_process_is_a_full_one(cupy):
    cupy().refused[0] = MEMORY_ALLOCATION
    with pytest.raises(BackendError, match=r"^GPU 0 has \? of \? MiB free, and that is not enough to start"):
        opening.open_device(0)


class CudaAwareMPI:
    """A ring that takes memory of the current device alone."""

    takes_device_memory, rank, size = True, 0, 2

    def __init__(self, cupy):
        self._cupy, self.current = cupy, []

    def start(self, sends, receives):
        for message in (*sends, *receives):
            assert message.array.__cuda_array_interface__["data"][0]
            self.current.append(self._cupy.current_device)


def test_the_gpu_of_a_rank_is_the_current_one(cupy):
    """MPI is called with it, and no rank has a context, which takes memory, on the first GPU of its node."""
    emulated = cupy(capabilities=["80"] * 4)
    memory = DeviceMemory(opening.open_device(3))
    array, ring = memory.put(np.ones(4, np.float32)), CudaAwareMPI(emulated)
    memory.add(array, array)
    reaching(memory.ferry, ring).start([Message(1, 1, array)], [Message(1, 1, array)])
    assert ring.current == [3, 3]
    assert emulated.contexts == {3}


def test_each_opening_makes_its_gpu_the_current_one(cupy):
    """Also a later one, of another thread or after another library."""
    emulated = cupy(capabilities=["80"] * 2)
    opening.open_device(1)
    emulated.cuda.Device(0).use()
    opening.open_device(1)
    assert emulated.current_device == 1


def test_a_gpu_that_another_made_current_is_left_to_it(cupy):
    emulated = cupy(capabilities=["80"] * 2)
    memory = DeviceMemory(opening.open_device(1))
    emulated.cuda.Device(0).use()
    np.testing.assert_array_equal(memory.get(memory.put(np.ones(4))), 1)
    assert emulated.current_device == 0


def test_without_the_compiler_it_says_so(cupy, monkeypatch):
    cupy()

    def missing():
        raise BackendError("the compiler of CUDA kernels (NVRTC) is not here")

    monkeypatch.setattr(opening.compiler, "version", missing)
    with pytest.raises(BackendError, match="NVRTC"):
        get_backend("cuda")


def test_auto_takes_a_gpu_that_is_there(cupy):
    cupy()
    assert choose() == ("cuda", "there is a GPU")
    assert get_backend().name == "cuda"


def test_auto_says_why_it_takes_none(monkeypatch):
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    name, why = choose()
    assert name in ("native", "numpy")
    assert "needs CuPy, which is not installed" in why


def test_auto_says_that_a_record_of_rows_keeps_it_from_a_gpu(cupy, monkeypatch, caplog):
    """Who has a GPU and gets the CPU learns what to change."""
    cupy()
    monkeypatch.setattr(ringmpi.backends, "find_spec", lambda name: True)
    with caplog.at_level(logging.INFO, "ringmpi"):
        assert get_backend(records=True).name in ("native", "numpy")
    assert re.search("no GPU is used: (.*; )?rows are to be recorded", caplog.text)
    assert "rows = false in [record]" in caplog.text


def test_auto_blames_no_record_where_there_is_no_gpu(cupy):
    cupy(capabilities=[])
    assert "CUDA_VISIBLE_DEVICES hides all" in choose(records=True)[1]


def test_nothing_of_cupy_is_imported_for_other_backends():
    code = "import sys; from ringmpi.backends import get_backend; get_backend('numpy'); sys.exit('cupy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
