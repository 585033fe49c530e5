"""Streams of a command that are closed, full, or read by nobody: what is said, and with which code it ends."""

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from ringmpi.comm.last_words import last_words

ROOT = Path(__file__).parents[2]
FULL = Path("/dev/full")


@pytest.fixture
def run_toml(tmp_path):
    rng = np.random.default_rng(3)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for name in "qkv":
            file[name] = rng.standard_normal((2, 40, 8), dtype=np.float32)
    (tmp_path / "run.toml").write_text(
        '[input]\nfile = "in.h5"\nquery = "q"\nkey = "k"\nvalue = "v"\n[output]\nfile = "out.h5"\n'
    )
    return tmp_path / "run.toml"


def ringmpi(folder, *arguments, streams=""):
    """The command in a shell that redirects its streams; it is read whole where it is not redirected."""
    line = f'exec "$0" -m ringmpi "$@" {streams}'
    return subprocess.run(
        ["sh", "-c", line, sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        timeout=60,
    )


@pytest.mark.parametrize("streams", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_run_goes_on_where_streams_are_closed(run_toml, streams):
    done = ringmpi(run_toml.parent, "run", "run.toml", streams=streams)
    assert (done.returncode, done.stderr) == (0, "")
    assert ringmpi(run_toml.parent, "verify", "out.h5").returncode == 0


def test_an_error_has_its_code_where_nobody_can_hear_it(tmp_path):
    for streams in ("2>&-", "2>/dev/full") if FULL.exists() else ("2>&-",):
        assert ringmpi(tmp_path, "run", "none.toml", streams=streams).returncode == 2


def test_last_words_are_lost_where_there_is_no_stderr(monkeypatch):
    """The job is to be ended then, too."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    last_words("nobody hears this")


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_full_disk_under_stdout_does_not_take_the_output_away(run_toml, options):
    done = ringmpi(run_toml.parent, "run", "--quiet", "run.toml", *options, streams=">/dev/full")
    assert done.returncode == 3
    assert done.stderr == (
        "ringmpi: error: cannot write the results to stdout: No space left on device. out.h5 is in place. Send them to "
        "a file with room, or to a program that reads to the end.\n"
    )
    assert ringmpi(run_toml.parent, "verify", "out.h5").returncode == 0


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_a_full_disk_under_stdout_is_one_sentence(run_toml):
    ringmpi(run_toml.parent, "run", "run.toml")
    asked = [
        ["verify", "out.h5"],
        ["verify", "out.h5", "--json"],
        ["inspect", "out.h5"],
        ["info"],
        ["plan", "run.toml", "--ranks", "2", "--machine", "h100-nvlink"],
        ["export", "out.h5", "arrays"],
    ]
    for arguments in asked:
        done = ringmpi(run_toml.parent, *arguments, streams=">/dev/full")
        assert (done.returncode, len(done.stderr.splitlines())) == (3, 1), done.stderr
        assert done.stderr.startswith("ringmpi: error: cannot write the results to stdout: No space left on device.")


def test_a_reader_that_ends_early_is_no_failed_check(run_toml):
    for arguments in (["run", "run.toml", "--quiet"], ["inspect", "out.h5"], ["verify", "out.h5"]):
        reader, writer = os.pipe()
        os.close(reader)  # it has ended already
        done = subprocess.run(
            [sys.executable, "-m", "ringmpi", *arguments],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            cwd=run_toml.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            timeout=60,
        )
        os.close(writer)
        assert done.returncode == 3
        assert done.stderr.startswith("ringmpi: error: cannot write the results to stdout: Broken pipe."), done.stderr
        assert ("out.h5 is in place" in done.stderr) == (arguments[0] == "run")
        assert done.stderr.count("\n") == 1
