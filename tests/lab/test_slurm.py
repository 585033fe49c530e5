"""`ringmpi run` under a real Slurm: srun, and mpirun within a job; uneven tasks a node; a wrong --mpi; a dead task."""

import shlex
import sys
from pathlib import Path

import pytest

from tests.lab.runs import RINGMPI, hosts_of, write_run

FAULTY = Path(__file__).parents[1] / "launched/faulty.py"
MPIRUN = Path(sys.executable).with_name("mpirun")
pytestmark = pytest.mark.timeout(90)


@pytest.mark.parametrize("nodes", [2, 8])
def test_srun_starts_a_rank_on_each_node(slurm, tmp_path, nodes):
    done = slurm.run("srun", "--mpi=pmi2", "-N", nodes, "--ntasks-per-node=1", *RINGMPI, "run", write_run(tmp_path))
    assert "exact" in done.stdout
    assert "verified" in done.stdout
    assert hosts_of(tmp_path / "out.h5") == [f"n{host}" for host in range(nodes)]


def test_ranks_of_a_node_are_neighbours_also_where_nodes_have_unlike_many(slurm, tmp_path):
    """Five tasks on two nodes of four: Slurm fills the first one, as its default order is by block."""
    slurm.run("srun", "--mpi=pmi2", "-N2", "-n5", *RINGMPI, "run", write_run(tmp_path))
    assert hosts_of(tmp_path / "out.h5") == ["n0"] * 4 + ["n1"]


def test_mpirun_in_a_job_finds_the_nodes_of_the_job(slurm, tmp_path):
    command = shlex.join(map(str, [MPIRUN, *RINGMPI, "run", write_run(tmp_path)]))
    number = slurm.submit("-N3", "--ntasks-per-node=2", "-o", tmp_path / "log", f"--wrap={command}")
    assert slurm.wait(number)["JobState"] == "COMPLETED", (tmp_path / "log").read_text()
    assert hosts_of(tmp_path / "out.h5") == ["n0", "n0", "n1", "n1", "n2", "n2"]


def test_ranks_that_do_not_find_each_other_are_told_so(slurm, tmp_path):
    """--mpi=none: each task is a job of its own, and all would write the same file."""
    done = slurm.run("srun", "--mpi=none", "-N2", *RINGMPI, "run", write_run(tmp_path), check=False)
    assert done.returncode != 0
    assert "the launcher started 2 processes (SLURM_STEP_NUM_TASKS), but MPI gives each its own job" in done.stderr
    assert "--mpi=" in done.stderr
    assert not (tmp_path / "out.h5").exists()


def test_a_rank_that_is_killed_ends_the_step(slurm, tmp_path):
    command = [sys.executable, FAULTY, "KILL", "1", "run", write_run(tmp_path, mask='"causal"')]
    done = slurm.run("srun", "--mpi=pmi2", "-N4", "--kill-on-bad-exit=1", *command, check=False, seconds=30)
    assert done.returncode not in {0, 124}, done.stderr
    assert "task 1" in done.stderr
    assert not (tmp_path / "out.h5").exists()
