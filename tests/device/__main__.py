"""What only a GPU can say: `python -m tests.device`, in less than four minutes.

Primitives against their emulation, all kernels against the plain formula, compute-sanitizer, and a table of times
beside PyTorch's attention. Exit status: 0 all as it must be, 1 something is not, 2 no usable GPU: nothing was run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from ringmpi.backends.cuda.opening import open_device
from ringmpi.errors import BackendError
from tests.device.conformance import Outcome, kernel_outcomes, primitive_outcomes
from tests.device.report import as_json, as_markdown
from tests.device.sanitizer import sanitizer_outcomes
from tests.device.timing import SHAPES, measure

SEEN = Path(__file__).parent / "seen"


def main() -> int:
    """Run all of it."""
    options = _options()
    try:
        device = open_device(local_rank=0)
    except BackendError as error:
        print(f"nothing was run, no usable GPU: {error}")  # noqa: T201
        return 2
    begun = time.monotonic()
    print(f"{device.name}, {device.architecture}")  # noqa: T201
    outcomes: list[Outcome] = []
    parts = primitive_outcomes(device, SEEN), kernel_outcomes(device), sanitizer_outcomes()
    for part in parts:
        for outcome in part:
            print(outcome, flush=True)  # noqa: T201
            outcomes.append(outcome)
    table = [] if options.no_times else measure(device, SHAPES)
    print(as_markdown(device, table))  # noqa: T201
    if options.json:
        Path(options.json).write_text(json.dumps(as_json(device, outcomes, table), indent=1) + "\n", encoding="utf-8")
    if options.markdown:
        Path(options.markdown).write_text(as_markdown(device, table), encoding="utf-8")
    failed = sum(outcome.passed is False for outcome in outcomes)
    print(f"{len(outcomes)} checks, {failed} failed, {time.monotonic() - begun:.0f} s")  # noqa: T201
    return bool(failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.device", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write all that was found")
    parser.add_argument("--markdown", metavar="FILE", help="write the table of times, for docs/performance.md")
    parser.add_argument("--no-times", action="store_true", help="checks alone")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
