"""When each rank would be where in a pass, if ranks were faster than they were.

The timeline holds seconds, not times of day. But all ranks begin a pass together, so a rank begins step s after all
that it did in the steps before: attending and waiting, summed. From that follows, for each hop, when both ends were
ready for it, and how long after that it landed (`lag`). With other seconds of attending the same lags give another
pass:

    start[r, s + 1] = max(start[r, s] + attend[r, s], ready[r, s] + lag[r, s])

where ready is the latest start of step s among the rank and those that it exchanges messages with in this step. A hop
that nobody waited for landed at an unknown time before the work was done: it gets the median lag of those that somebody
did wait for, or less where that would have been waited for. With the seconds as they were the formula gives back the
waits as they were.

To look at a hop that has landed takes time too, microseconds: so short a wait is counted as work.
Saves of a run with checkpoints are in no counter, so they are left out here too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.schedule import Schedule
from ringmpi.storage.account import PassTimeline

Seconds = NDArray[np.float64]
LOOK_SECONDS, LOOK_SHARE = 1e-3, 1e-3  # shorter waits, and parts of the work: a look at a hop that had landed


@dataclass(frozen=True, eq=False)
class RingClock:
    """A pass as it was, ready to be run with other seconds.

    Attributes
    ----------
    attend : float64 [ranks, steps], seconds
        Looks at hops that had landed are included.
    lag : float64 [ranks, steps], seconds
        From when both ends of the hops of a step were ready until they had landed at this rank. Negative where a
        message had left before the other end began its step.
    exposed : float64 [ranks, steps], seconds
        Of the waits, what remains once both ends were ready: transfers, not late ranks.
    from_before, from_next : bool [ranks, steps]
        Whether a rank exchanges messages with the rank before, and with the next one, in a step.
    """

    attend: Seconds
    lag: Seconds
    exposed: Seconds
    from_before: NDArray[np.bool_]
    from_next: NDArray[np.bool_]

    @property
    def seconds(self) -> float:
        """The pass as it was."""
        return self.seconds_with(self.attend)

    def seconds_with(self, attend: Seconds) -> float:
        """Seconds until the last rank is through, with these seconds [ranks, steps] of attending."""
        start = np.zeros(len(attend))
        for step in range(attend.shape[1]):
            ready = _ready(start, self.from_before[:, step], self.from_next[:, step])
            start = np.maximum(start + attend[:, step], ready + self.lag[:, step])
        return float(start.max(initial=0))


def ring_clock(timeline: PassTimeline, schedule: Schedule) -> RingClock:
    """The clock of a pass.

    Parameters
    ----------
    timeline : PassTimeline
    schedule : Schedule
        Hand to hand, a rank receives from the one before and sends to the next, or both ways; else all messages leave
        in the first step, so no later start of another rank holds one up.
    """
    waited = timeline.wait_seconds > LOOK_SECONDS + LOOK_SHARE * timeline.attend_seconds
    attend = timeline.attend_seconds + np.where(waited, 0, timeline.wait_seconds)
    wait = np.where(waited, timeline.wait_seconds, 0)
    from_before, from_next = timeline.bytes_received > 0, timeline.bytes_sent > 0
    if not schedule.hand_to_hand:
        from_before = from_next = np.zeros_like(from_next)
    elif len(schedule.directions) > 1:
        from_before = from_next = from_before | from_next
    ends = np.cumsum(attend + wait, axis=1)
    starts = np.hstack([np.zeros((len(attend), 1)), ends])
    ready = np.empty_like(attend)
    for step in range(attend.shape[1]):
        ready[:, step] = _ready(starts[:, step], from_before[:, step], from_next[:, step])
    measured = ends - ready
    exposed = np.where(waited, np.clip(measured, 0, wait), 0.0)
    typical = float(np.median(exposed[waited])) if waited.any() else 0.0
    lag = np.where(waited, measured, np.minimum(measured, typical))
    return RingClock(attend, lag, exposed, from_before, from_next)


def _ready(start: Seconds, from_before: NDArray[np.bool_], from_next: NDArray[np.bool_]) -> Seconds:
    """When a rank and those that it exchanges messages with have all begun a step."""
    before, after = np.roll(start, 1), np.roll(start, -1)
    ready = np.where(from_before, np.maximum(start, before), start)
    return np.where(from_next, np.maximum(ready, after), ready)
