"""Tests that start `mpirun ... ringmpi` themselves and look at what a user sees: files, messages, exit codes."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 90


@dataclass
class Done:
    """A finished job."""

    code: int
    out: str
    err: str
    seconds: float


class Launcher:
    """mpirun, as the Makefile or the user sets it (MPIRUN), else the one beside this Python."""

    def __init__(self, command):
        self.command = command

    def start(self, ranks, *arguments, program=("-m", "ringmpi"), cwd=None, **environment):
        """The job, begun."""
        command = [*self.command, "-n", str(ranks), sys.executable, *program, *map(str, arguments)]
        settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | environment
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, env=settings
        )

    def __call__(self, *arguments, **options):
        """The job, ended."""
        started = time.monotonic()
        job = self.start(*arguments, **options)
        try:
            out, err = job.communicate(timeout=LIMIT_SECONDS)
        except BaseException:  # also the limit of the test: what it has said so far is all that there is to go by
            job.kill()
            sys.stderr.write(job.communicate(timeout=LIMIT_SECONDS)[1])
            raise
        return Done(job.returncode, out, err, time.monotonic() - started)


@pytest.fixture(scope="session")
def mpirun():
    beside = Path(sys.executable).with_name("mpirun")
    command = shlex.split(os.environ.get("MPIRUN", "")) or ([str(beside)] if beside.exists() else [])
    if not command or not shutil.which(command[0]):
        pytest.skip("no mpirun beside this Python, and MPIRUN is not set: jobs are not launched here")
    return Launcher(command)


@pytest.fixture
def job(tmp_path):
    """Write an input file and its RUN.toml; returns the path of RUN.toml, whose output is out.h5 beside it."""

    def write(query_length, key_length=None, *, dtype=np.float32, heads=(4, 2), head_dim=16, options="", extra=None):
        rng = np.random.default_rng(1)
        key_length = query_length if key_length is None else key_length
        shapes = {"q": (heads[0], query_length, head_dim), "k": (heads[1], key_length, head_dim)}
        arrays = {name: rng.standard_normal(shape) for name, shape in (shapes | {"v": shapes["k"]}).items()}
        with h5py.File(tmp_path / "in.h5", "w") as file:
            for name, array in arrays.items():
                write_floats(file, name, array.astype(dtype))
            for name, array in (extra or {}).items():
                file[name] = array
        path = tmp_path / "run.toml"
        path.write_text(
            f'[input]\nfile = "{tmp_path}/in.h5"\nquery = "q"\nkey = "k"\nvalue = "v"\n'
            f'[output]\nfile = "{tmp_path}/out.h5"\nverify_rows = 100000\n{options}'
        )
        return path

    return write


def write_floats(file, name, array):
    """bfloat16 as 16 bits with the attribute that says so, as h5py alone cannot write it."""
    if array.dtype.name == "bfloat16":
        file[name] = array.view(np.uint16)
        file[name].attrs["ringmpi_dtype"] = "bfloat16"
    else:
        file[name] = array
