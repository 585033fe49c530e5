"""What only a GPU can say: `python -m tests.device`, in less than four minutes, what matters most first.

Kernels of each dtype against the plain formula, a whole ring, primitives against their emulation, times beside those of
PyTorch, then the kernels and times that are left, and compute-sanitizer. What is found is printed and written at
once. When time is up nothing new begins, and what was not run is named.

Exit status: 0 all as it must be, 1 something is not, 2 no usable GPU: nothing was run.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
from pathlib import Path

from ringmpi.backends.cuda.opening import open_device
from ringmpi.errors import BackendError
from tests.device.conformance import (
    FIRST_CASES,
    FIRST_KERNELS,
    OTHER_CASES,
    OTHER_KERNELS,
    addition_outcomes,
    compilation_outcomes,
    kernel_outcomes,
    long_outcomes,
    primitive_outcomes,
    ring_outcomes,
)
from tests.device.report import Findings
from tests.device.sanitizer import SECONDS, sanitizer_outcomes
from tests.device.timing import FIRST_SHAPES, OTHER_SHAPES, measure

ROOT = Path(__file__).parents[2]
SEEN = Path(__file__).parent / "seen"
MOST_SECONDS = 220
GRACE_SECONDS = 20  # for what is under way then; a kernel that hangs takes longer


def main() -> int:
    """Run all of it."""
    options = _options()
    try:
        device = open_device(local_rank=0)
    except BackendError as error:
        print(f"nothing was run, no usable GPU: {error}")  # noqa: T201
        return 2
    end = time.monotonic() + options.seconds

    def left() -> float:
        return end - time.monotonic()

    faulthandler.dump_traceback_later(options.seconds + GRACE_SECONDS, exit=True)
    findings = Findings(device, options.out)
    findings.take("compilation", compilation_outcomes(device, FIRST_KERNELS, seconds=left), end)
    findings.take("kernels of each dtype", kernel_outcomes(device, FIRST_CASES), end)
    findings.take("long sums", long_outcomes(device), end)
    findings.take("additions", addition_outcomes(device), end)
    findings.take("rings", ring_outcomes(), end)
    findings.take("primitives", primitive_outcomes(device, SEEN, options.out), end)
    findings.take("times", measure(device, FIRST_SHAPES), end)
    findings.take("other compilation", compilation_outcomes(device, OTHER_KERNELS, seconds=left), end)
    findings.take("other kernels", kernel_outcomes(device, OTHER_CASES), end)
    findings.take("other times", measure(device, OTHER_SHAPES), end)
    findings.take("compute-sanitizer", sanitizer_outcomes(seconds=lambda: min(SECONDS, left())), end)
    print(findings.summary())  # noqa: T201
    return bool(findings.failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.device", description=__doc__)
    parser.add_argument("--seconds", type=float, default=MOST_SECONDS, help="begin nothing new after so many")
    parser.add_argument("--out", type=Path, default=ROOT / "build/device", help="a folder for all that is found")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
