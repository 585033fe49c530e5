"""Which GPU a rank takes, what "auto" takes, and what is said where there is none."""

import subprocess
import sys
from pathlib import Path

import pytest

from ringmpi.backends import choose, get_backend
from ringmpi.backends.cuda import opening
from ringmpi.backends.cuda.cupy_device import CupyDevice
from ringmpi.errors import BackendError
from tests.cuda.emulated_cupy import CUDARuntimeError, EmulatedCupy
from tests.cuda.numpy_runner import NumpyRunner


@pytest.fixture
def cupy(monkeypatch):
    """An emulated CuPy for `import cupy`, and a compiler."""

    def install(**options):
        emulated = EmulatedCupy(NumpyRunner(), **options)
        monkeypatch.setattr(opening, "_cupy", lambda: emulated)
        monkeypatch.setattr(opening.compiler, "version", lambda: (13, 0))
        return emulated

    return install


@pytest.mark.parametrize(("local_rank", "count", "index"), [(0, 4, 0), (3, 4, 3), (3, 1, 0), (5, 4, 1)])
def test_gpus_are_dealt_to_the_ranks_of_a_node(cupy, local_rank, count, index):
    """By number on the node: global ranks would leave GPUs of cyclic jobs idle. A rank that is shown one takes it."""
    cupy(count=count)
    device = opening.open_device(local_rank)
    assert device.uuid == f"GPU-00000000-0000-0000-0000-{index:012x}"
    assert opening.open_device(local_rank) is device, "streams and memory are made once a process"


def test_a_uuid_that_comes_cut_is_not_taken_for_one(cupy):
    """Two GPUs whose UUID has a byte of 0 are two all the same."""
    emulated = cupy()
    emulated.cuda.runtime.getDeviceProperties = lambda index: {"name": b"cut", "uuid": b"\x01"}
    assert CupyDevice(emulated, 0, emulated.compiled).uuid == "GPU at 0000:00:00.0"


def test_without_cupy_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    with pytest.raises(BackendError, match=r'needs CuPy, which is not installed: pip install "\.\[cuda13\]"'):
        get_backend("cuda")


def test_a_cupy_that_cannot_be_loaded_is_no_crash(monkeypatch):
    monkeypatch.setattr(opening, "find_spec", lambda name: True)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(BackendError, match="needs CuPy, which cannot be loaded .ModuleNotFoundError"):
        get_backend("cuda")


def test_without_a_driver_it_says_what_cuda_says(cupy):
    def no_driver():
        raise CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")

    cupy().cuda.runtime.getDeviceCount = no_driver
    with pytest.raises(BackendError, match=r"finds no GPU \(cudaErrorInsufficientDriver.*Slurm: --gpus"):
        get_backend("cuda")


def test_hidden_gpus_are_none(cupy):
    cupy(count=0)
    with pytest.raises(BackendError, match="CUDA_VISIBLE_DEVICES hides all"):
        get_backend("cuda")


def test_old_gpus_are_refused(cupy):
    cupy(capability="75")
    with pytest.raises(BackendError, match=r"needs GPUs of compute capability 8.0 or newer.*GPU 0 is of 7.5"):
        get_backend("cuda")


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


def test_nothing_of_cupy_is_imported_for_other_backends():
    code = "import sys; from ringmpi.backends import get_backend; get_backend('numpy'); sys.exit('cupy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
