"""compute-sanitizer on two shapes: addresses out of bounds, races in shared memory, as the hardware meets them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.device.conformance import Outcome

TOOLS = ("memcheck", "racecheck")
CASES = ("float16-64", "float64-32")
SECONDS = 60
FOUND_SOMETHING = 9  # exit status


def sanitizer_outcomes(program: str | None = None) -> Iterator[Outcome]:
    """Each tool on each case; "not run" where the program is not installed.

    Parameters
    ----------
    program : str or None
        None: compute-sanitizer from the PATH, or where CUDA is installed by default.
    """
    program = program or shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    for tool in TOOLS:
        for case in CASES:
            name = f"compute-sanitizer {tool} {case}"
            yield _run(name, [program, "--tool", tool], case) if program else Outcome(name, None, "it is not installed")


def _run(name: str, command: list[str], case: str) -> Outcome:
    whole = [*command, "--error-exitcode", str(FOUND_SOMETHING), sys.executable, "-m", "tests.device.one_case", case]
    root = Path(__file__).parents[2]
    try:
        done = subprocess.run(whole, capture_output=True, text=True, timeout=SECONDS, check=False, cwd=root)
    except subprocess.TimeoutExpired:
        return Outcome(name, False, f"did not end within {SECONDS} s")
    return Outcome(name, done.returncode == 0, "" if done.returncode == 0 else (done.stdout + done.stderr)[-400:])
