"""Waiting by looking again and again: MPI moves messages only while it is called."""

from __future__ import annotations

import time
from collections.abc import Callable

EAGER_POLLS = 200  # polls before the first nap: short hops are not slowed by it
NAP_SECONDS = 1e-4  # on fewer cores than ranks a spinning rank steals the time of the one it waits for
MOST_AT_ONCE = 1.0  # seconds that one poll may count for


def comes(landed: Callable[[], bool], seconds: float, look: Callable[[], bool] = lambda: False) -> bool:
    """Poll until `landed`; False if that does not happen in time.

    Time in which this process did not run counts for a second at most: where a batch system has suspended the job, the
    others stood still too.

    Parameters
    ----------
    seconds : float
        How long to wait; 0: forever.
    look : function () -> bool
        Called between polls; where it has had something to do, the wait starts again.
    """
    waited, polls, seen = 0.0, 0, time.monotonic()
    while not landed():
        polls += 1
        time.sleep(0 if polls < EAGER_POLLS else NAP_SECONDS)
        waited += min(-seen + (seen := time.monotonic()), MOST_AT_ONCE)
        if look():
            waited, seen = 0.0, time.monotonic()
        if 0 < seconds < waited:
            return False
    return True
