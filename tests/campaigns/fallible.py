"""`ringmpi` with a rank that is killed at a chosen point: python fallible.py PLAN ARGUMENT...

PLAN: JSON. "point": where (see POINTS); "rank": who; "nth": at which arrival there; "marker": a file to write the time
to just before; "call_seconds", "call_pairs": how long a kernel call takes at least, and how much it does at most, so
that a small problem has many moments to be killed in; "hop_seconds": how late all hops land.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from ringmpi import cli
from ringmpi.backends import get_backend
from ringmpi.comm.launcher import launched_rank
from ringmpi.comm.mpi import MPIRing

PLAN = json.loads(sys.argv[1])
MINE = launched_rank(os.environ) == PLAN["rank"]
SOON_SECONDS = 0.002
arrivals = 0


def die(how=signal.SIGKILL):
    Path(PLAN["marker"]).write_text(f"{time.time()}")
    os.kill(os.getpid(), how)


def arrive():
    """Be killed, if it is the time."""
    global arrivals
    arrivals += MINE
    if MINE and arrivals == PLAN["nth"]:
        die()


def at_a_time(how=signal.SIGKILL):
    """Wherever the process is then: at its start, between two passes, while it reads or writes."""
    if MINE:
        clock = threading.Timer(PLAN["nth"] / 100, die, [how])
        clock.daemon = True
        clock.start()


def by_a_signal():
    """Asked to stop, at a time; not killed, unless it has not come so far as to hear it."""
    at_a_time(signal.SIGUSR1)


def in_compute():
    """After a kernel call, before its pairs are counted."""
    for name in ("attend", "attend_backward"):
        setattr(Kernel, name, followed(getattr(Kernel, name), arrive))


def in_a_hop():
    """With messages under way."""
    MPIRing.start = followed(MPIRing.start, arrive)


def in_the_write_of_a_shard():
    """While a rank's state is written, before it gets its name, and after."""
    from ringmpi.checkpoint import keeper

    if PLAN["nth"] % 3:
        around_rename("rank-", before=PLAN["nth"] % 3 == 1)
        return
    write = keeper.write_rank_state

    def writing(*arguments, **options):
        global arrivals
        arrivals += MINE
        if MINE and arrivals == PLAN["nth"]:
            threading.Timer(SOON_SECONDS, die).start()
        return write(*arguments, **options)

    keeper.write_rank_state = writing


def in_the_rename_of_a_manifest():
    """Before it gets its name, and after."""
    around_rename("manifest.json", before=PLAN["nth"] % 2 == 1)


def in_the_merge():
    """Before the shards become one file, before it gets its name, and after."""
    from ringmpi.job import writing

    if PLAN["nth"] == 1:
        writing.merge_shards = preceded(writing.merge_shards, arrive)
    else:
        PLAN["nth"], before = 1, PLAN["nth"] == 2
        around_rename("out.h5", before=before, whole=True)


def around_rename(name, *, before, whole=False):
    """Arrive before or after a file that is so named, or whose name begins so, appears."""
    replace = Path.replace

    def replacing(self, target):
        ours = Path(target).name == name if whole else Path(target).name.startswith(name)
        if ours and before:
            arrive()
        replaced = replace(self, target)
        if ours and not before:
            arrive()
        return replaced

    Path.replace = replacing


def landing_late(start):
    def starting(*arguments):
        flight = start(*arguments)
        landed, soonest = flight.landed, time.monotonic() + PLAN["hop_seconds"]
        flight.landed = lambda: time.monotonic() >= soonest and landed()
        return flight

    return starting


def preceded(function, action):
    def both(*arguments, **options):
        action()
        return function(*arguments, **options)

    return both


def followed(function, action):
    def both(*arguments, **options):
        result = function(*arguments, **options)
        action()
        return result

    return both


POINTS = {
    "time": at_a_time,
    "compute": in_compute,
    "hop": in_a_hop,
    "shard": in_the_write_of_a_shard,
    "manifest": in_the_rename_of_a_manifest,
    "merge": in_the_merge,
    "signal": by_a_signal,
    "stop": lambda: None,
    "none": lambda: None,
}
Kernel = type(get_backend())

if __name__ == "__main__":
    sys.argv = ["ringmpi", *sys.argv[2:]]
    Kernel.call_budget = lambda self, heads, dtype: PLAN["call_pairs"]
    for call in ("attend", "attend_backward"):
        setattr(Kernel, call, preceded(getattr(Kernel, call), lambda: time.sleep(PLAN["call_seconds"])))
    MPIRing.start = landing_late(MPIRing.start)
    POINTS[PLAN["point"]]()
    cli.main()
