"""The scripts of jobs/ and what they name exist."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from ringmpi.cli import commands
from ringmpi.config import load_config

ROOT = Path(__file__).parent.parent
SCRIPTS = [ROOT / "jobs/run.sh", ROOT / "jobs/run.sbatch", ROOT / "tests/run_mpi.sh", ROOT / ".ci/run"]
RUNS = sorted((ROOT / "jobs").glob("*.toml"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_shell_can_parse_it(script):
    shell = "bash" if "bash" in script.read_text().splitlines()[0] else "sh"
    subprocess.run([shell, "-n", script], check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not on this machine")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script):
    result = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_only_subcommands_that_exist_are_called(script):
    for subcommand in re.findall(r"-m ringmpi (\w+)", script.read_text()):
        assert CliRunner().invoke(commands, [subcommand, "--help"]).exit_code == 0, subcommand


@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.name)
def test_a_run_loads_and_its_input_is_there(run):
    config = load_config(run)
    assert (ROOT / config.input.file).is_file()


@pytest.fixture
def small_run(tmp_path):
    """A run of a second: three heads that look 16 positions back."""
    output, run = tmp_path / "out.h5", tmp_path / "run.toml"
    run.write_text(
        f'[input]\nfile = "{ROOT / "data/smollm2_kjv_2048.h5"}"\n'
        'query = "layer12/k"\nkey = "layer12/k"\nvalue = "layer12/v"\n'
        f'[attention]\nmask = {{window = [16, 0]}}\n[output]\nfile = "{output}"\n'
    )
    return run, output


def run_job(*command: str | Path, **environment: str) -> None:
    environment = os.environ | {"RINGMPI_VENV": sys.prefix, "PYTHONPATH": str(ROOT)} | environment
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_script_for_plain_hosts_runs(small_run):
    if not (Path(sys.prefix) / "bin/mpirun").exists():
        pytest.skip("this environment has no MPI wheel (MPI=site)")
    run, output = small_run
    run_job(ROOT / "jobs/run.sh", "2", run, OMP_NUM_THREADS="1")
    assert output.exists()


def test_the_slurm_script_starts_the_run_through_srun(small_run, tmp_path):
    run, output = small_run
    srun = tmp_path / "srun"  # one rank, and what it was asked for kept for the look below
    srun.write_text(
        '#!/bin/sh\necho "$@" > "$ASKED"\nwhile case $1 in --*) ;; *) false ;; esac; do shift; done\nexec "$@"\n'
    )
    srun.chmod(0o755)
    path, asked = f"{tmp_path}:{os.environ['PATH']}", tmp_path / "asked"
    run_job("bash", ROOT / "jobs/run.sbatch", run, "--quiet", PATH=path, SLURM_CPUS_PER_TASK="1", ASKED=str(asked))
    assert output.exists()
    assert asked.read_text().startswith("--cpus-per-task=1 --kill-on-bad-exit=1 ")
