"""A rank that dies, stops or raises in mid-ring ends the whole job, soon, with one readable message, and no output."""

import re
import time
from pathlib import Path

import pytest

FAULTY = str(Path(__file__).with_name("faulty.py"))
SOON_SECONDS = 10
TIMEOUT_SECONDS = 3


def seconds_after_the_fault(done):
    """From the moment of the fault to the end of mpirun."""
    return time.time() - float(re.search(r"does \w+ at ([\d.]+)", done.out).group(1))


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("KILL", r"(?i)rank {rank}\b"),
        ("RAISE", r"ringmpi: error: rank {rank} \(node .*\): Traceback[\s\S]*a fault of one rank"),
        ("ERROR", r"ringmpi: error: rank {rank} \(node .*\): the accelerator fell off the bus"),
        ("STOP", r"rank {rank} did not answer rank \d \(node .*\) for 3 s during (ring step \d of 4|writing shards)"),
    ],
)
def test_one_failing_rank_ends_the_job(mpirun, job, tmp_path, how, rank, says):
    path = job(400, options='[ring]\nsharding = "contiguous"', heads=(2, 1))
    done = mpirun(4, how, rank, "run", path, "--timeout", TIMEOUT_SECONDS, program=(FAULTY,))
    assert done.code != 0
    assert seconds_after_the_fault(done) < SOON_SECONDS + (TIMEOUT_SECONDS if how == "STOP" else 0)
    assert re.search(says.format(rank=rank), done.err + done.out), done.err + done.out
    assert done.err.count("ringmpi: error:") == (0 if how == "KILL" else 1), done.err
    assert not (tmp_path / "out.h5").exists()
