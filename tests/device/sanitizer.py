"""compute-sanitizer on two shapes: addresses out of bounds, races in shared memory, as the hardware meets them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.device.outcome import Outcome

TOOLS = ("memcheck", "racecheck")
CASES = ("float16-64", "float64-32")
SECONDS = 60
FOUND_SOMETHING = 9  # exit status


def sanitizer_outcomes(
    program: str | None = None, *, seconds: Callable[[], float] = lambda: SECONDS
) -> Iterator[Outcome]:
    """Each tool on each case; "not run" where the program is not installed.

    Parameters
    ----------
    program : str or None
        None: compute-sanitizer from the PATH, or where CUDA is installed by default.
    seconds : function () -> float
        What one run may take, at most SECONDS.
    """
    program = program or shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    for tool in TOOLS:
        for case in CASES:
            name = f"compute-sanitizer {tool} {case}"
            if not program:
                yield Outcome(name, None, "it is not installed")
            else:
                yield _run(name, [program, "--tool", tool], case, max(seconds(), 0))


def _run(name: str, command: list[str], case: str, seconds: float) -> Outcome:
    whole = [*command, "--error-exitcode", str(FOUND_SOMETHING), sys.executable, "-m", "tests.device.one_case", case]
    root = Path(__file__).parents[2]
    try:
        done = subprocess.run(whole, capture_output=True, text=True, timeout=seconds, check=False, cwd=root)
    except subprocess.TimeoutExpired:
        return Outcome(name, None if seconds < SECONDS else False, f"did not end within {seconds:.0f} s")
    return Outcome(name, done.returncode == 0, "" if done.returncode == 0 else (done.stdout + done.stderr)[-400:])
