"""A rank that dies, stops or raises in mid-ring ends the whole job, soon, with one readable message, and no output."""

import json
import re
import signal
import time
from pathlib import Path

import pytest

from ringmpi.errors import INTERRUPTED, STOPPED

EARLY = str(Path(__file__).with_name("early.py"))
FALLIBLE = str(Path(__file__).parents[1] / "campaigns" / "fallible.py")
FAULTY = str(Path(__file__).with_name("faulty.py"))
UNPUNCTUAL = str(Path(__file__).with_name("unpunctual.py"))
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
        ("TERM", r"ringmpi: error: rank {rank} \(node .*\): ended by SIGTERM"),
        (
            "INT",
            r"ringmpi: error: rank {rank} \(node .*\): stopped from the keyboard; with a table \[checkpoint\]",
        ),
        (
            "STOP",
            r"rank {rank}( \(node .+\)|, or one that it waits for,) did not answer rank \d \(node .+\) for [36] s ",
        ),
    ],
)
def test_one_failing_rank_ends_the_job(mpirun, job, tmp_path, how, rank, says):
    path = job(400, options='[ring]\nsharding = "contiguous"', heads=(2, 1))
    patience = ("--timeout", TIMEOUT_SECONDS) if how == "STOP" else ()  # else ranks end without running into it
    done = mpirun(4, how, rank, "run", path, *patience, program=(FAULTY,))
    assert done.code != 0
    assert seconds_after_the_fault(done) < SOON_SECONDS + (TIMEOUT_SECONDS if how == "STOP" else 0)
    assert re.search(says.format(rank=rank), done.err + done.out), done.err + done.out
    errors = [line for line in done.err.splitlines() if "ringmpi: error:" in line]
    if how == "STOP":  # several ranks may give up at once
        assert all(re.search(says.format(rank=rank), line) for line in errors), done.err
    else:
        assert len(errors) == (how != "KILL"), done.err
    assert not (tmp_path / "out.h5").exists()


@pytest.mark.parametrize(("number", "says"), [("SIGTERM", "ended by SIGTERM"), ("SIGINT", "stopped from the keyboard")])
def test_a_signal_to_the_launcher_ends_the_job(mpirun, job, tmp_path, number, says):
    """A cancelled job; Ctrl-C. MPICH's launcher hands the signal on, Open MPI's ends ranks before they can speak."""
    plan = {"point": "none", "nth": 0, "rank": 0, "marker": "", "call_seconds": 0.5, "call_pairs": 1000}
    started = mpirun.start(3, json.dumps(plan), "run", job(400), program=(FALLIBLE,))
    while "3 ranks of" not in (line := started.stderr.readline()):
        assert line, "it ended before the signal"
    began = time.monotonic()
    started.send_signal(getattr(signal, number))
    out, err = started.communicate(timeout=30)
    assert time.monotonic() - began < SOON_SECONDS
    assert started.returncode != 0
    assert err.count("ringmpi: error:") <= 1, err
    assert says in err or "ringmpi: error" not in err
    assert "Traceback" not in out + err
    assert not (tmp_path / "out.h5").exists()


@pytest.mark.parametrize("how", ["IMPORT", "INTERRUPT"])
def test_a_rank_that_fails_before_the_job_has_begun_ends_it(mpirun, job, how):
    """A library that is missing on one node; Ctrl-C while modules load. MPI has not even started there."""
    done = mpirun(3, how, 1, "run", job(64), "--timeout", TIMEOUT_SECONDS, program=(EARLY,))
    assert done.code != 0
    assert done.seconds < SOON_SECONDS


def test_a_rank_that_is_interrupted_before_mpi_has_started_ends_the_job_with_130(mpirun, job):
    """Not with 1, which would say that a check failed."""
    done = mpirun(1, "INTERRUPT", 0, "run", job(64), program=(EARLY,))
    assert done.code == INTERRUPTED
    assert "Attempting to use an MPI routine" not in done.err + done.out


@pytest.mark.parametrize(("options", "code"), [('[checkpoint]\ndirectory = "kept"', STOPPED), ("", 0)])
def test_a_request_that_comes_while_mpi_starts_is_not_lost(mpirun, job, tmp_path, options, code):
    """A batch system says once that the time is nearly over."""
    done = mpirun(2, "SIGNAL", 0, "run", job(64, options=options), program=(EARLY,), cwd=tmp_path)
    assert done.code == code, done.err
    assert ("stopped by SIGUSR1" if code else "SIGUSR1 is ignored: without [checkpoint]") in done.err


@pytest.mark.parametrize(
    ("how", "during", "written"),
    [("_start", "(starting MPI|making the ring)", False), ("_end", "ending MPI, after all work was done,", True)],
)
def test_a_rank_that_is_stopped_as_mpi_starts_or_ends_ends_the_job(mpirun, job, tmp_path, how, during, written):
    """In here nothing can be polled, and mpi4py would hold the lock that the clock needs."""
    done = mpirun(3, how, 1, "run", job(64), "--timeout", TIMEOUT_SECONDS, program=(UNPUNCTUAL,))
    assert done.code != 0
    assert seconds_after_the_fault(done) < SOON_SECONDS + TIMEOUT_SECONDS
    assert re.search(f"ringmpi: error: (rank \\d .*: )?{during} took more than 3 s: a rank", done.err), done.err
    assert (tmp_path / "out.h5").exists() is written


def test_two_runs_to_one_output_do_not_mix(mpirun, job, tmp_path):
    """The second is refused while the first is at work; the first is whole."""
    path = job(2000, heads=(4, 2), options='[attention]\nmask = "causal"')
    first = mpirun.start(2, "run", path, "--json")
    while not (tmp_path / "out.h5.lock").exists() and first.poll() is None:
        time.sleep(0.01)
    second = mpirun(2, "run", path, "--force", "--set", "attention.mask=full")
    out, err = first.communicate(timeout=60)
    assert first.returncode == 0, err
    assert json.loads(out)["certificate"]["passed"]
    assert second.code == 0 or "written by another run" in second.err
