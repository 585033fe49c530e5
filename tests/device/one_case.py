"""One case on the GPU, once: `python -m tests.device.one_case float16-64`; what compute-sanitizer looks at."""

from __future__ import annotations

import sys

from ringmpi.backends.cuda.opening import open_device
from tests.cuda.cases import EVERY_CASE
from tests.device.conformance import kernel_outcomes


def main() -> int:
    """0 where numbers and counts are right."""
    cases = tuple(case for case in EVERY_CASE if str(case) == sys.argv[1])
    outcomes = list(kernel_outcomes(open_device(local_rank=0), cases))
    print(*outcomes, sep="\n")  # noqa: T201
    return not (outcomes and all(outcome.passed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
