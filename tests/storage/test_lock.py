"""One run an output: the second is refused with the name of the first, and a lock does not outlive its holder."""

import subprocess
import sys

import pytest

from ringmpi.errors import StorageError
from ringmpi.storage.lock import only_run
from tests.test_docs import ROOT

HOLD = (
    "import sys; from ringmpi.storage.lock import only_run\n"
    "with only_run(sys.argv[1]): print('held', flush=True); sys.stdin.read()"
)


def holder(path):
    """Another process that holds the output until its stdin is closed."""
    pipe = subprocess.PIPE
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=pipe, stdout=pipe, text=True, cwd=ROOT)
    assert other.stdout.readline() == "held\n"
    return other


def test_a_second_run_is_refused_and_names_the_first(tmp_path):
    other = holder(tmp_path / "out.h5")
    try:
        with pytest.raises(StorageError, match=rf"out.h5 is being written by another run \(process {other.pid} on "):
            only_run(tmp_path / "out.h5").__enter__()
    finally:
        other.communicate()
    with only_run(tmp_path / "out.h5"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_killed_run_is_free(tmp_path):
    other = holder(tmp_path / "out.h5")
    other.kill()
    other.communicate()
    with only_run(tmp_path / "out.h5"):
        assert (tmp_path / "out.h5.lock").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_frees_its_output(tmp_path):
    with pytest.raises(ZeroDivisionError), only_run(tmp_path / "out.h5"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
