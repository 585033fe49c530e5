"""Timelines of rings that are simulated message by message: what is true of them is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ringmpi.storage.account import PassTimeline

Seconds = NDArray[np.float64]


def simulate(
    attend: Seconds, transfer: Seconds, pairs: NDArray[np.int64] | None = None, *, look: float = 0.0
) -> PassTimeline:
    """A forward pass of the ring schedule.

    look : seconds of a look at the hops of a step

    attend : float64 [ranks, steps], seconds
    transfer : float64 [ranks], seconds of a hop from the rank before, once both ends have begun the step
    """
    ranks, steps = attend.shape
    wait, moved = np.zeros_like(attend), np.zeros(attend.shape, np.int64)
    begun = [0.0] * ranks
    for step in range(steps):
        ended = [begun[rank] + attend[rank, step] for rank in range(ranks)]
        if step == steps - 1 or ranks == 1:
            break
        landed = [max(begun[rank - 1], begun[rank]) + transfer[rank] for rank in range(ranks)]
        begun = [max(ended[rank], landed[rank], landed[(rank + 1) % ranks]) for rank in range(ranks)]
        begun = [moment + look for moment in begun]
        wait[:, step] = np.array(begun) - ended
        moved[:, step] = 1000
    counted = np.full(attend.shape, 10**6) if pairs is None else pairs
    return PassTimeline(attend, np.maximum(wait, 0), np.maximum(wait, 0), moved, moved, counted)


def seconds(timeline: PassTimeline) -> float:
    """Until the last rank is through."""
    return float((timeline.attend_seconds + timeline.wait_seconds).sum(axis=1).max())
