"""Backends by name."""

import subprocess
import sys
from pathlib import Path

import pytest

from ringmpi.backends import get_backend
from ringmpi.errors import BackendError


@pytest.mark.parametrize("name", ["auto", "numpy"])
def test_numpy_is_what_this_version_has(name):
    assert get_backend(name).name == "numpy"


@pytest.mark.parametrize("name", ["native", "cuda"])
def test_a_backend_of_other_versions_is_refused_with_what_to_do(name):
    with pytest.raises(BackendError, match=f'"{name}" is asked for.*only "numpy".*Use backend = "numpy" or "auto"'):
        get_backend(name)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(BackendError, match='backend "torch" is not known; known are "auto", "numpy"'):
        get_backend("torch")


def test_backends_share_no_scratch():
    assert get_backend("numpy") is not get_backend("numpy")


def test_no_backend_is_imported_before_it_is_asked_for():
    code = "import sys, ringmpi.backends; sys.exit('ringmpi.backends.numpy.attend' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
