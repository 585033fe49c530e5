"""What a record of rows costs: CPU seconds of a forward pass with it over those without, in turn, in one process.

python -m docs.record_cost [LENGTH ...]: 8 heads of 64 channels, causal, float32, native kernels on one thread.
"""

from __future__ import annotations

import sys
from statistics import median
from time import process_time

import numpy as np

from ringmpi.backends import get_backend
from ringmpi.core.partial import empty_partial
from ringmpi.core.record import Recording
from ringmpi.core.scoring import Scoring
from ringmpi.core.work import cut, meet

HEADS, HEAD_DIM = 8, 64
LENGTHS = (8192, 32768)
ROUNDS = {8192: 7, 32768: 3}


def cost(length: int, rounds: int) -> tuple[list[float], float]:
    """The ratio of each round, and the CPU seconds without a record (median)."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 1, HEADS, length, HEAD_DIM), dtype=np.float32)
    backend, scoring = get_backend("native"), Scoring(HEAD_DIM**-0.5)
    causal = np.array([[0, length, 0, length, -length, 0]])
    calls = cut(meet(causal, range(length), range(length)), 1 << 22)

    def seconds(recording: Recording | None) -> float:
        into = empty_partial(1, HEADS, length, HEAD_DIM, np.dtype(np.float32), recording=recording)
        began = process_time()
        for work in calls:
            backend.attend(q, k, v, work, scoring, into=into)
        return process_time() - began

    seconds(None)
    pairs = [(seconds(None), seconds(Recording())) for _ in range(rounds)]
    return [recorded / plain for plain, recorded in pairs], median(plain for plain, _ in pairs)


def main() -> None:
    """Print a line a length."""
    for length in map(int, sys.argv[1:]) if sys.argv[1:] else LENGTHS:
        ratios, plain = cost(length, ROUNDS.get(length, 5))
        shown = ", ".join(f"{ratio:.3f}" for ratio in sorted(ratios))
        print(f"{length:,} tokens: {median(ratios):.3f} times {plain:.2f} CPU seconds ({shown})")  # noqa: T201


if __name__ == "__main__":
    main()
