import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringmpi.cli.info import lines

ROOT = Path(__file__).parents[2]
REPORT = {
    "ringmpi": {"version": "1", "backends": ["numpy"]},
    "cores": {
        "CPUs allowed": 4,
        "cores allowed": None,
        "CPU time allowed by cgroups": None,
        "NUMA nodes": {"0": "0-3"},
    },
    "packages": {"numpy": "2.0", "h5py": None},
    "HDF5": {"built with MPI": False, "filters": []},
    "Slurm": {},
    "missing": ["h5py is not installed"],
}


def info(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "ringmpi", "info", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | environment,
        timeout=60,
    )


def test_a_fact_is_a_line():
    assert list(lines(REPORT)) == [
        "ringmpi", "  version: 1", "  backends: numpy",
        "cores", "  CPUs allowed: 4", "  cores allowed: unknown", "  CPU time allowed by cgroups: no limit",
        "  NUMA nodes: 0 0-3",
        "packages", "  numpy: 2.0", "  h5py: not installed",
        "HDF5", "  built with MPI: no", "  filters: none",
        "Slurm: none",
        "missing", "  - h5py is not installed",
    ]  # fmt: skip


def test_what_only_gpus_need_is_not_called_missing():
    assert list(lines({"GPU": {"CuPy": None}})) == ["GPU", "  CuPy: not installed (needed on GPUs alone)"]


def test_nothing_missing_is_said():
    assert list(lines({"missing": []})) == ["missing: nothing"]


def test_it_runs_without_an_mpi_library_and_says_so():
    done = info(MPI4PY_LIBMPI="/nowhere/libmpi.so")
    assert (done.returncode, done.stderr) == (0, "")
    assert "mpi4py finds no MPI library" in done.stdout


def test_json_is_one_object():
    done = info("--json", SLURM_NTASKS="3", SLURM_JOB_USER="ada")
    report = json.loads(done.stdout)
    assert (done.returncode, report["Slurm"]) == (0, {"SLURM_NTASKS": "3"})


@pytest.mark.parametrize("module", ["mpi4py.MPI", "cupy", "h5py"])
def test_this_process_starts_neither_mpi_nor_a_gpu(module):
    program = (
        "import sys; from ringmpi.cli import exit_code; code = exit_code(['info']);"
        f"sys.exit(9 if {module!r} in sys.modules else code)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=ROOT, timeout=60).returncode == 0
