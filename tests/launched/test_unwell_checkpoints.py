"""Checkpoints where files go wrong in a run: a save that fails does not end it, a stop that cannot save says so."""

import json
import re
from pathlib import Path

import h5py
import numpy as np
import pytest

from ringmpi.storage.generations import Checkpoints

STOPPING = (str(Path(__file__).with_name("stopping.py")),)
UNWELL = (str(Path(__file__).with_name("unwell_saves.py")),)
STOPPED, REFUSED = 4, 3
RANKS = 3
SLOW = ("run.toml", 1, 1)  # rank 1 is slow from its first call on; run.toml is touched, which changes nothing


@pytest.fixture
def kept(tmp_path):
    """Write an input and a RUN.toml with [checkpoint] into a folder."""

    def write(folder=tmp_path, *, output="out.h5", checkpoints="checkpoints", every=600.0):
        rng = np.random.default_rng(3)
        with h5py.File(folder / "in.h5", "w") as file:
            for name, heads in {"q": 4, "k": 2, "v": 2}.items():
                file[name] = rng.standard_normal((heads, 120, 8)).astype(np.float32)
        text = (
            f'[input]\nfile = "in.h5"\nquery = "q"\nkey = "k"\nvalue = "v"\n[backend]\nname = "numpy"\n'
            f'[output]\nfile = "{output}"\nverify_rows = 100000\n'
            f'[checkpoint]\ndirectory = "{checkpoints}"\nevery_seconds = {every}\n'
        )
        (folder / "run.toml").write_text(text, encoding="utf-8")

    return write


def left(tmp_path):
    return sorted(path.name for path in (tmp_path / "checkpoints").rglob("*"))


@pytest.mark.parametrize(
    ("how", "rank", "says"),
    [
        ("FULL", 2, r"rank 2\b.*: cannot write checkpoints/generation-000001/rank-00002\.h5: File too large\."),
        ("READONLY", 1, r"rank 1\b.*: cannot write .*rank-00001\.h5: Read-only file system\. Change its permissions"),
        ("MANIFEST", 0, r"cannot write checkpoints/generation-000001/manifest\.json: File too large\."),
        (
            "MEMORY",
            2,
            r"rank 2\b.*: cannot write .*rank-00002\.h5: too little memory is free \(1 GiB\)\. Use more ranks",
        ),
    ],
)
def test_a_save_that_fails_on_one_rank_is_told_and_the_run_goes_on(mpirun, kept, tmp_path, how, rank, says):
    kept(every=0.4)
    done = mpirun(RANKS, how, rank, 1, *SLOW, "run", "run.toml", "--json", program=UNWELL, cwd=tmp_path)
    assert done.code == 0, done.err
    assert re.search(says, done.err), done.err
    assert len(re.findall(says, done.err)) == 1
    assert "saved generation 2 in checkpoints" in done.err
    assert "saved generation 1 in" not in done.err
    assert json.loads(done.out)["certificate"]["passed"]
    assert left(tmp_path) == []


def test_a_stop_that_cannot_save_names_the_generation_that_remains(mpirun, kept, tmp_path):
    kept()
    stop = ("SIGTERM", 1, 4)
    assert mpirun(RANKS, *stop, "run", "run.toml", program=STOPPING, cwd=tmp_path).code == STOPPED
    before = left(tmp_path)
    done = mpirun(RANKS, "FULL", 2, 99, *stop, "run", "--resume", "run.toml", program=UNWELL, cwd=tmp_path)
    assert done.code == REFUSED, done.err
    says = (
        r"stopped by SIGTERM, but the state could not be saved: rank 2.*rank-00002\.h5: File too large.*Fix that; "
        r"--resume then goes on from generation 1\."
    )
    assert re.search(says, done.err), done.err
    assert done.err.count("ringmpi: error:") == 1
    assert [name for name in left(tmp_path) if name != "REQUEUE"] == [name for name in before if name != "REQUEUE"]
    done = mpirun(2, "NOTHING", 0, 0, "run", "--resume", "run.toml", "--json", program=STOPPING, cwd=tmp_path)
    assert done.code == 0, done.err
    assert json.loads(done.out)["certificate"]["passed"]


def test_word_that_cannot_be_left_does_not_spoil_a_state_that_is_saved(mpirun, kept, tmp_path):
    kept()
    done = mpirun(2, "REQUEUE", 0, 9, "SIGTERM", 1, 4, "run", "run.toml", program=UNWELL, cwd=tmp_path)
    assert done.code == STOPPED, done.err
    assert "cannot write checkpoints/REQUEUE: File too large" in done.err
    assert "stopped by SIGTERM at generation 1" in done.err


def test_a_signal_that_comes_early_is_not_lost(mpirun, kept, tmp_path):
    """Before there is anything to save, a rank that gets it would end without a word."""
    kept()
    done = mpirun(2, "EARLY", 1, 0, *SLOW, "run", "run.toml", program=UNWELL, cwd=tmp_path)
    assert done.code == STOPPED, done.err
    assert "SIGUSR1: saving and stopping" in done.err
    assert "stopped by SIGUSR1 at generation 1" in done.err


def test_ranks_that_see_other_times_of_the_input_refuse_it_alike(mpirun, kept, tmp_path):
    """Where arrays are read in part: the others see what the checkpoint has, and would go on without rank 0."""
    kept()
    keys = ("--set", "attention.mask={keys=[0,60]}")
    stopped = mpirun(2, "SIGTERM", 1, 4, "run", "run.toml", *keys, program=STOPPING, cwd=tmp_path)
    assert stopped.code == STOPPED, stopped.err
    word = (tmp_path / "checkpoints" / "REQUEUE").read_text(encoding="utf-8")
    assert word.startswith("stopped by SIGTERM; go on under mpirun or srun, on any number of ranks, with: ")
    assert word.endswith(" -m ringmpi run --resume run.toml --set 'attention.mask={keys=[0,60]}'\n")
    resume = ("NOTHING", 0, 0, "run", "--resume", "run.toml", *keys, "--timeout", 8)
    done = mpirun(2, "STAMPS", 0, 0, *resume, program=UNWELL, cwd=tmp_path)
    assert done.code == REFUSED, done.err
    assert "key and value cannot be confirmed to match the checkpoint with" in done.err
    assert "did not answer" not in done.err
    assert done.err.count("ringmpi: error:") == 1


def test_a_second_job_in_the_directory_is_refused_until_the_first_has_ended(mpirun, kept, tmp_path):
    kept()
    Checkpoints(tmp_path / "checkpoints").prepare()
    with Checkpoints(tmp_path / "checkpoints").hold():
        done = mpirun(2, "run", "run.toml", "--resume", cwd=tmp_path)
        assert done.code == REFUSED, done.err
        says = r"checkpoints is being written by another run \(process \d+ on \S+\)\. Wait for it, or name another dir"
        assert re.search(says, done.err), done.err
        assert done.err.count("ringmpi: error:") == 1
    assert mpirun(2, "run", "run.toml", "--resume", cwd=tmp_path).code == 0


def test_names_that_are_not_ascii_in_the_plain_locale(mpirun, kept, tmp_path):
    """Python then takes file names to be UTF-8."""
    folder = tmp_path / "\u00fcbung"
    folder.mkdir()
    kept(folder, output="\u0432\u044b\u0445\u043e\u0434.h5", checkpoints="pr\u00fcfung")
    plain = {"LC_ALL": "C", "LANG": "C"}
    stopped = mpirun(RANKS, "SIGTERM", 1, 4, "run", "run.toml", program=STOPPING, cwd=folder, **plain)
    assert stopped.code == STOPPED, stopped.err
    assert (folder / "pr\u00fcfung" / "generation-000001" / "manifest.json").exists()
    done = mpirun(2, "NOTHING", 0, 0, "run", "--resume", "run.toml", program=STOPPING, cwd=folder, **plain)
    assert done.code == 0, done.err
    assert (folder / "\u0432\u044b\u0445\u043e\u0434.h5").exists()


def test_names_that_the_locale_cannot_say_are_refused_with_what_to_do(mpirun, kept, tmp_path):
    """Where it is not taken to be UTF-8."""
    kept(output="\u0432\u044b\u0445\u043e\u0434.h5")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = mpirun(1, "run", "run.toml", cwd=tmp_path, **ascii_only)
    assert done.code == REFUSED, done.err
    assert "Its name cannot be encoded in this locale: set LC_ALL=C.UTF-8" in done.err
    assert "Traceback" not in done.err
