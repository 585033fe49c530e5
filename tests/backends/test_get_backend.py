"""Backends by name."""

import subprocess
import sys
from pathlib import Path

import pytest

from ringmpi.backends import get_backend
from ringmpi.backends.native import shared_library
from ringmpi.errors import BackendError
from tests.backends.natives import ISAS


@pytest.mark.parametrize("name", ["native", "numpy"])
def test_a_backend_is_the_one_asked_for(name):
    if name == "native" and not ISAS:
        pytest.skip("the native kernels are not built")
    assert get_backend(name).name == name


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    """tests/cuda/test_host_opening.py has what "auto" does where there is one."""
    monkeypatch.setattr("ringmpi.backends.cuda.opening.why_not", lambda: "none here")


def test_auto_is_native_where_it_is_built():
    assert get_backend("auto").name == ("native" if ISAS else "numpy")


def test_auto_is_numpy_where_the_native_kernels_are_not_built(monkeypatch, tmp_path):
    monkeypatch.setattr(shared_library, "FOLDER", tmp_path)
    assert get_backend("auto").name == "numpy"
    with pytest.raises(BackendError, match=r"not built. Install a C\+\+ compiler .* and install ringmpi again"):
        get_backend("native")


@pytest.mark.skipif(not ISAS, reason="the native kernels are not built")
def test_auto_tells_of_an_instruction_set_that_is_not_there(monkeypatch):
    """NumPy instead, without a word, would be an option accepted and ignored."""
    monkeypatch.setenv("RINGMPI_NATIVE", "avx9")
    with pytest.raises(BackendError, match='the native kernels for "avx9" were requested; available here are'):
        get_backend("auto")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(
        BackendError, match='backend "torch" is unknown; choose one of "auto", "native", "numpy", "cuda"'
    ):
        get_backend("torch")


def test_backends_share_no_scratch():
    assert get_backend("numpy") is not get_backend("numpy")


def test_no_backend_is_imported_before_it_is_asked_for():
    code = "import sys, ringmpi.backends; sys.exit('ringmpi.backends.numpy.attend' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
