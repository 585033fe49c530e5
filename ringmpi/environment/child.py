"""Questions to other programs, which may hang, crash or not be there: none of that reaches the asker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PATIENCE_SECONDS = 20.0
SWEEP_SECONDS = 2.0
# How launchers speak to the processes that they start. A child that hears it would take its parent's place in the job.
LAUNCHER_PREFIXES = ("PMI_", "PMIX_", "PMI2_", "HYDI_", "HYDRA_", "PALS_", "PRTE_", "OMPI_COMM_", "SLURM_", "MPI_LOCAL")
SETTING_PREFIXES = ("PMIX_MCA_", "PRTE_MCA_")


class Answer(NamedTuple):
    """What a program wrote to stdout, and why it failed; empty if it did not."""

    text: str
    failure: str


def ask(
    *command: str | Path, seconds: float = PATIENCE_SECONDS, environment: Mapping[str, str] | None = None
) -> Answer:
    """Run a program for `seconds` at most; by itself, as if no launcher had started this process.

    environment : of the program, where it is to be another.
    """
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=alone(os.environ) if environment is None else environment,
            start_new_session=True,  # so that it can be ended with all that it has started
        )
    except OSError as error:
        return Answer("", f"cannot be started: {error.strerror}")
    try:
        text, errors = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return Answer(_end(child), f"no answer for {seconds:g} s")
    except BaseException:  # Ctrl-C in the terminal does not reach a session of its own
        _end(child)
        raise
    return Answer(text, _failure(child.returncode, errors))


def ask_python(module: str, *arguments: str, seconds: float = PATIENCE_SECONDS) -> Answer:
    """Run a module of ringmpi in another process of this Python."""
    return ask(sys.executable, "-m", module, *arguments, seconds=seconds)


def alone(environment: Mapping[str, str], *, but: tuple[str, ...] = SETTING_PREFIXES) -> dict[str, str]:
    """The environment without what ties this process to a launcher, and with this ringmpi to be found in it.

    but : beginnings of names that are kept all the same.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith(LAUNCHER_PREFIXES) or name.startswith(but)
    }
    here = str(Path(__file__).parents[2])
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [here, environment.get("PYTHONPATH", "")]))
    return kept


def _end(child: subprocess.Popen[str]) -> str:
    """Kill a program and what it started; what it has written until then."""
    with suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        return child.communicate(timeout=SWEEP_SECONDS)[0]
    return ""


def _failure(code: int, errors: str) -> str:
    if code == 0:
        return ""
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    lines = [line.strip() for line in errors.splitlines() if line.strip(" -*=")]
    return f"{how}: {lines[-1]}" if lines else how
