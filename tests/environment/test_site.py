"""`ringmpi info --check`: a verdict a check, also where something is missing, broken or hangs."""

import json
import os
import stat
import sys
import time

import pytest

from ringmpi.cli import exit_code
from ringmpi.environment import site
from ringmpi.environment.child import Answer
from ringmpi.environment.site import check_site
from ringmpi.storage import about_files

MPICH = {"library": "MPICH Version: 5", "flavour": "MPICH", "file": "/x/libmpi.so", "thread level": "MULTIPLE"}
HYDRA = {"program": "/x/mpirun", "version": "HYDRA build details"}
MET = {"ranks": 2, "nodes": ["a", "a"], "cores": [[0, 1], [0, 1]], "CUDA": None, "GB a second": 5.0, "moves alone": 0.1}


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A shell script that comes first on the PATH, and no launcher beside this Python."""
    monkeypatch.setattr(site.libraries.sys, "executable", str(tmp_path / "python"))

    def write(name, text):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        return path

    return write


def answer(**facts):
    return Answer(json.dumps(facts), "")


def ranks(job, launcher=None, **environment):
    """Level by name of check, and all texts in one."""
    verdicts = list(site.of_ranks(job, launcher or HYDRA, environment))
    return {v.what: v.level for v in verdicts}, " ".join(f"{v.found}; {v.advice}" for v in verdicts)


@pytest.mark.timeout(90)
def test_this_machine_gets_a_verdict_on_everything_within_a_minute(tmp_path):
    began = time.monotonic()
    verdicts = {verdict.what: verdict for verdict in check_site(tmp_path)}
    assert time.monotonic() - began < 60
    assert {"MPI library", "HDF5", "file system", "renamed files", "locks", "Slurm", "topology"} <= verdicts.keys()
    assert {verdict.level for verdict in verdicts.values()} <= {"ok", "note", "problem"}
    assert all(verdict.advice for verdict in verdicts.values() if verdict.level == "problem")
    assert not list(tmp_path.iterdir())
    if verdicts["MPI library"].level == "ok":
        assert verdicts["ranks"].level == "ok", verdicts["ranks"]


def test_ranks_that_meet():
    levels, text = ranks(answer(**MET))
    assert levels == {"ranks": "ok", "cores": "ok", "messages": "ok"}
    assert "do not progress without polling" in text
    assert "5.0 GB/s" in text
    assert "they progress without" in ranks(answer(**MET | {"moves alone": 0.9}))[1]


def test_launcher_and_library_that_do_not_belong_together():
    levels, text = ranks(answer(ranks=1, nodes=["a"], cores=[[0]]))
    assert levels == {"ranks": "problem"}
    assert "each sees a job of its own" in text


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (Answer("", "no answer for 30 s"), "no answer for 30 s, before they had met"),
        (Answer(json.dumps(MET), "no answer for 30 s"), "after they had met; They start but cannot exchange"),
        (Answer("", "exit code 1: not enough slots"), "not enough slots"),
    ],
)
def test_ranks_that_do_not_meet(job, says):
    levels, text = ranks(job)
    assert levels == {"ranks": "problem"}
    assert says in text


def test_two_ranks_on_one_core(monkeypatch):
    bound = answer(**MET | {"cores": [[3], [3]]})
    monkeypatch.setattr(site.os, "cpu_count", lambda: 8)
    levels, text = ranks(bound)
    assert levels["cores"] == "problem"
    assert "core 3 only; Give each rank a core of its own" in text
    assert ranks(answer(**MET | {"cores": [[3], [3]], "nodes": ["a", "b"]}))[0]["cores"] == "ok"
    monkeypatch.setattr(site.os, "cpu_count", lambda: 1)
    assert ranks(bound)[0]["cores"] == "note"


def test_srun_is_not_started_outside_of_a_job(program):
    program("srun", "sleep 60")
    srun = {"program": "/bin/srun", "version": "slurm 24"}
    assert site.start_ranks(srun, {}) == ("", "")
    levels, text = ranks(Answer("", ""), srun)
    assert levels == {"ranks": "note"}
    assert "salloc -n 2" in text


def test_srun_is_told_of_its_job_and_mpirun_of_none(program, tmp_path):
    for name in ("srun", "mpirun"):
        path = program(name, f"env > {tmp_path}/told")
        site.start_ranks({"program": str(path)}, {"SLURM_JOB_ID": "7", "PMI_RANK": "0", "PATH": os.environ["PATH"]})
        told = (tmp_path / "told").read_text()
        assert ("SLURM_JOB_ID=7" in told) == (name == "srun")
        assert "PMI_RANK" not in told


def test_a_launcher_that_hangs_is_ended(program, monkeypatch):
    monkeypatch.setattr(site, "JOB_SECONDS", 0.5)
    job = site.start_ranks({"program": str(program("mpirun", "sleep 60"))}, os.environ)
    assert job.failure == "no answer for 0.5 s"


def test_a_library_that_is_missing_or_grants_no_threads():
    (verdict,) = site.of_mpi({"error": "cannot load MPI library"}, HYDRA)
    assert (verdict.level, verdict.found) == ("problem", "none")
    assert "pip install" in verdict.advice
    assert [v.level for v in site.of_mpi(MPICH | {"thread level": "SINGLE"}, HYDRA)] == ["ok", "note"]
    assert [v.level for v in site.of_mpi(MPICH, {})] == ["problem", "ok"]


@pytest.mark.parametrize(("cuda", "gpus", "level"), [(None, [], "ok"), (False, ["x"], "note"), (True, ["x"], "ok")])
def test_gpus_whose_memory_mpi_does_not_take(cuda, gpus, level):
    verdict = site.of_cuda({"CUDA": cuda}, {"devices": gpus})
    assert verdict.level == level
    assert ("not needed" in verdict.found) == (not gpus)


def test_hdf5_that_cannot_be_loaded():
    assert site.of_hdf5({"error": "libhdf5.so: no such file"}).level == "problem"
    assert "built with MPI" in site.of_hdf5({"HDF5": "1", "h5py": "3", "built with MPI": True}).found


def files(monkeypatch, tmp_path, capsys):
    """Verdicts by name, of what the program writes."""
    monkeypatch.setattr(sys, "argv", ["about_files", str(tmp_path)])
    about_files.main()
    return {v.what: v for v in site.of_files(Answer(capsys.readouterr().out, ""), tmp_path)}


def test_a_directory_that_cannot_be_written(monkeypatch, tmp_path, capsys):
    found = files(monkeypatch, tmp_path / "nowhere", capsys)
    assert found["file system"].level == "problem"
    assert "No such file or directory" in found["file system"].found


def test_a_full_disk_is_a_problem_with_its_reason(monkeypatch, tmp_path, capsys):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(about_files, "sync", full)
    found = files(monkeypatch, tmp_path, capsys)
    assert (found["file system"].level, list(found)) == ("problem", ["file system"])
    assert "No space left on device" in found["file system"].found
    assert not list(tmp_path.iterdir())


def test_a_slow_disk_locks_that_do_not_hold_and_names_that_are_not_seen(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(about_files, "PROBE_BYTES", 1 << 20)
    assert {v.level for v in files(monkeypatch, tmp_path, capsys).values()} <= {"ok", "note"}
    monkeypatch.setattr(about_files.fcntl, "lockf", lambda *arguments: None)
    monkeypatch.setattr(about_files, "SEEN_SECONDS", 0.05)
    monkeypatch.setattr(about_files.Path, "replace", lambda self, target: None)
    found = files(monkeypatch, tmp_path, capsys)
    assert found["locks"].level == "note"
    assert found["renamed files"].level == "problem"
    slow = Answer(json.dumps({"MB a second": 3, "free bytes": 1e9}), "no answer for 40 s")
    assert [v.level for v in site.of_files(slow, tmp_path)] == ["problem", "note"]


def test_slurm_and_what_it_says():
    assert site.of_slurm(Answer("", "cannot be started: No such file"), {}).level == "ok"
    assert site.of_slurm(Answer("", "no answer for 20 s"), {}).level == "note"
    found = site.of_slurm(Answer("slurm 24.05.1\n", ""), {"SLURM_JOB_ID": "1"}).found
    assert found == "slurm 24.05.1; this is a Slurm job"


def test_sources_of_topology(monkeypatch):
    told = {"SLURM_TOPOLOGY_ADDR": "leaf0.n0", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.node"}
    assert "leaf0.n0" in site.of_topology(told).found
    monkeypatch.setattr(site.shutil, "which", lambda name: None)
    assert "nothing at hand" in site.of_topology({}).found
    monkeypatch.setattr(site.shutil, "which", lambda name: "/bin/scontrol")
    assert "scontrol show topology" in site.of_topology({}).advice


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("note", 0), ("problem", 1)])
@pytest.mark.parametrize("as_json", [True, False])
def test_a_line_a_verdict_and_the_exit_code(monkeypatch, capsys, level, code, as_json):
    verdict = site.Verdict(level, "locks", "at /home/ada/x", "wait")
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setattr(site, "check_site", lambda directory: [verdict])
    assert exit_code(["info", "--check", *["--json"] * as_json]) == code
    out = capsys.readouterr().out
    if as_json:
        assert json.loads(out) == [{"level": level, "what": "locks", "found": "at ~/x", "advice": "wait"}]
    else:
        assert out == f"{level:8} locks: at ~/x\n         -> wait\n"
