"""Files that go wrong on one rank alone, and inputs that are not finite: what is said, once, and how the job ends."""

import json
import re
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

UNWELL = str(Path(__file__).with_name("unwell.py"))
RANKS = 3
SOON_SECONDS = 30  # well below --timeout: nobody waits for a rank that has failed


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize(
    ("how", "sharding", "says"),
    [
        (
            "DENIED",
            "contiguous",
            r"rank {rank} \(node .+\): cannot open in\.h5: Permission denied\. Change its permissions",
        ),
        ("LOCKED", "contiguous", r"rank {rank} \(node .+\): cannot open in\.h5: .*HDF5_USE_FILE_LOCKING=FALSE"),
        (
            "BROKEN",
            "contiguous",
            r"rank {rank} \(node .+\): cannot read in\.h5, dataset /q: .*Input/output error.*disk may be failing",
        ),
        (
            "BROKEN",
            "striped",
            r"rank {rank}\b.*: cannot read in\.h5, dataset /q: .*Input/output error.*disk may be failing",
        ),
        ("FULL", "contiguous", r"rank {rank} \(node .+\): cannot write out\.h5\.shard-0000{rank}: File too large\."),
        (
            "READONLY",
            "contiguous",
            r"rank {rank} \(node .+\): cannot write out\.h5\.shard-0000{rank}: Read-only file system\. Change its perm",
        ),
        ("EDITED", "contiguous", r"input in\.h5 changed during the run: key may not be what was read"),
        ("REPLACED", "contiguous", r"input in\.h5 changed during the run: key may not be what was read"),
    ],
)
def test_one_rank_with_a_bad_file_ends_the_job_with_one_message(mpirun, job, tmp_path, how, sharding, says, rank):
    job(90, options=f'[ring]\nsharding = "{sharding}"')
    started = time.monotonic()
    done = mpirun(RANKS, how, rank, "run", "run.toml", "--set", "input.file=in.h5", "--set", "output.file=out.h5",
                  program=(UNWELL,), cwd=tmp_path)  # fmt: skip
    assert time.monotonic() - started < SOON_SECONDS
    assert done.code == 3
    assert re.search(says.format(rank=rank), done.err), done.err
    assert done.err.count("ringmpi: error:") == 1, done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "out.h5").exists()


def test_an_input_that_is_only_touched_does_not_spoil_the_run(mpirun, job, tmp_path):
    job(90)
    done = mpirun(RANKS, "TOUCHED", 1, "run", "run.toml", "--set", "input.file=in.h5", "--set", "output.file=out.h5",
                  "--json", program=(UNWELL,), cwd=tmp_path)  # fmt: skip
    assert done.code == 0, done.err
    assert json.loads(done.out)["certificate"]["passed"]


def test_what_is_not_finite_is_allowed_counted_and_said(mpirun, job, tmp_path):
    path = job(60, options='[attention]\nmask = "causal"\n[ring]\nsharding = "contiguous"')
    with h5py.File(tmp_path / "in.h5", "r+") as file:
        file["q"][1, 3, 2] = np.nan
        file["k"][0, 58, [1, 5]] = np.nan
        file["v"][1, [21, 59], 4] = [np.inf, -np.inf]
    done = mpirun(RANKS, "run", path, "--json")
    assert done.code == 0, done.err
    (line,) = (line for line in done.err.splitlines() if "NaN" in line)
    assert line == (
        "ringmpi: query holds 1 NaN and 0 inf (ranks [0]); key holds 2 NaN and 0 inf (ranks [2]); "
        "value holds 0 NaN and 2 inf (ranks [1, 2]); only rows that attend to them are affected"
    )
    with h5py.File(tmp_path / "out.h5") as file:
        finite = np.isfinite(file["output"][...]).all(axis=(0, 2))
    assert [*np.flatnonzero(~finite)] == [3, *range(21, 60)]


def test_finite_inputs_are_not_spoken_of(mpirun, job):
    assert "NaN" not in mpirun(2, "run", job(30), "--json").err
