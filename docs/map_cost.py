"""What the map pass costs: its CPU seconds over those of the forward pass before it, in turn, in one process.

python -m docs.map_cost [LENGTH ...]: 8 heads of 64 channels, causal, float32, native, one thread, blocks of 256.
"""

from __future__ import annotations

import sys
from statistics import median
from time import process_time

import numpy as np

from ringmpi import Mask, attention, attention_map

HEADS, HEAD_DIM, BLOCK = 8, 64, 256
LENGTHS = (8192, 32768)
ROUNDS = {8192: 7, 32768: 3}


def cost(length: int, rounds: int) -> tuple[list[float], float]:
    """The ratio of each round, and the CPU seconds of a forward pass (median)."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, HEADS, length, HEAD_DIM), dtype=np.float32)
    found = []
    for _ in range(rounds):
        began = process_time()
        out = attention(q, k, v, mask=Mask.causal(), backend="native")
        between = process_time()
        attention_map(q, k, out.log_sum_exp, block=BLOCK, mask=Mask.causal(), backend="native")
        found.append((between - began, process_time() - between))
    return [second / forward for forward, second in found], median(forward for forward, _ in found)


def main() -> None:
    """Print a line a length."""
    for length in map(int, sys.argv[1:]) if sys.argv[1:] else LENGTHS:
        ratios, forward = cost(length, ROUNDS.get(length, 5))
        shown = ", ".join(f"{ratio:.3f}" for ratio in sorted(ratios))
        print(f"{length:,} tokens: {median(ratios):.3f} times {forward:.2f} CPU seconds ({shown})", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
