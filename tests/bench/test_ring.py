"""`ringmpi bench ring` without ranks: what is asked of them, what is made of their samples."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ringmpi.bench.job import environment_of_ranks
from ringmpi.bench.questions import Case
from ringmpi.bench.ring import Measured, Wanted
from ringmpi.bench.ring_ranks import Meter
from ringmpi.bench.ring_report import ring_report
from ringmpi.comm.launcher import SIZES
from ringmpi.comm.protocol import Message
from ringmpi.process.cores import own_cores

ROOT = Path(__file__).parents[2]


def job(**passes):
    """What a round of a job has found: wall seconds by pass."""
    cases = [{n: {"wall": [wall], "cpu": [wall], "waited": [0.25], "bytes": [8e6]} for n, wall in passes.items()}]
    return {"cases": cases, "bandwidth": [8e6], "job": {"ranks": 2}}


def test_weak_scaling_keeps_the_queries_of_a_rank():
    wanted = Wanted([Case(1, 1, 64, 8)], [1, 2, 4], scaling="weak")
    assert [wanted.cases_on(ranks)[0].length for ranks in wanted.ranks] == [16, 32, 64]
    assert wanted.settings(2, 1)["cases"][0]["length"] == 32


def test_a_peer_has_as_many_threads_as_ranks_and_not_more_than_cores():
    wanted = Wanted([Case(1, 1, 8, 8)], [1, 2, 4096], threads=1)
    assert wanted.peer_threads(1) == 1
    assert wanted.peer_threads(4096) == len(own_cores())


def test_a_ring_on_gpus_says_what_its_times_hold():
    wanted, measured = Wanted([Case(2, 2, 100, 10)], [1], rounds=1, backend="cuda"), Measured()
    measured.add_job(1, job(forward=1.0))
    (row,) = ring_report(wanted, measured, {}, planned=False).rows
    assert row.note == "arrays go from the host to the GPU and back"


def test_figures_are_those_of_the_samples():
    wanted, measured = Wanted([Case(2, 2, 100, 10)], [1, 2], rounds=2), Measured()
    for slow in (1.0, 3.0):  # the second round is slow, and no ratio sees it
        measured.add_job(1, job(forward=2 * slow, backward=5 * slow))
        measured.add_job(2, job(forward=slow, backward=3 * slow))
    measured.add_both()
    rows = {
        (r.subject["pass"], r.subject["on"]): r.figures for r in ring_report(wanted, measured, {}, planned=False).rows
    }
    forward, backward, both = (rows[name, "2 ranks"] for name in ("forward", "backward", "forward + backward"))
    assert forward["wall"].samples == [1, 3]
    assert both["wall"].samples == [4, 12]
    assert forward["GF/s a rank"].samples == pytest.approx([4 * 2 * 100**2 * 10 / 1e9 / 2 / s for s in (1, 3)])
    assert forward["efficiency"].samples == pytest.approx([1, 1])
    assert backward["efficiency"].samples == pytest.approx([5 / 6, 5 / 6])
    assert both["GF/s a rank"].samples[0] == pytest.approx(3.5 * forward["GF/s a rank"].samples[0] / 4)
    assert backward["time of forward"].samples == pytest.approx([3, 3])
    assert backward["CPU of forward"].samples == pytest.approx([3, 3])
    assert backward["bytes of forward"].samples == [1, 1]
    assert forward["sent"].samples == [8, 8]
    assert forward["hidden"].samples == pytest.approx([0.5, 0.5])  # 4 MB of a rank take 0.5 s alone, 0.25 s are waited
    assert "efficiency" not in rows["forward", "1 rank"]


def test_the_meter_counts_what_is_sent_and_times_what_is_waited_for():
    started = []

    def start(sends, receives):
        started.append((sends, receives))
        return "flight"

    transport = SimpleNamespace(start=start, drive=lambda loop, *during: list(loop), rank=3)
    meter = Meter(transport)
    sends = [Message(0, 1, np.zeros(5, np.float32)), Message(1, 1, np.zeros(2, np.uint8))]
    assert meter.start(sends, []) == "flight"
    meter.drive(iter(["flight", "flight"]))
    assert (meter.bytes, meter.rank) == (22, 3)
    assert started == [(sends, [])]
    assert meter.waited > 0
    meter.reset()
    assert (meter.bytes, meter.waited) == (0, 0)


def test_the_process_that_starts_the_jobs_starts_no_mpi():
    program = "import sys; sys.modules['mpi4py'] = None; import ringmpi.bench.ring_report, ringmpi.bench.hop_ranks"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_ranks_that_a_batch_job_starts_learn_of_its_nodes_those_of_a_rank_do_not(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for name in SIZES:
        monkeypatch.delenv(name, raising=False)
    assert environment_of_ranks(1)["SLURM_JOB_ID"] == "7"
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert "SLURM_JOB_ID" not in environment_of_ranks(1)
