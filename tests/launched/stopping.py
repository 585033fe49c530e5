"""`ringmpi` with small kernel calls, in one of which something happens: python stopping.py WHAT RANK CALL ARGUMENT...

WHAT     SIGTERM, SIGUSR1 ...: this rank gets that signal; a path: somebody makes this file; PACE: nothing, slowly;
         HOPS: all hops land late, so that ranks wait and listen; NOTHING: at full speed
RANK     launch rank
CALL     in its nth kernel call of the run, forward and backward calls counted on; then it is slow, so that all others
         go on until they wait for it
"""

import os
import signal
import sys
import time
from pathlib import Path

from ringmpi import cli
from ringmpi.backends.native.attend import NativeBackend
from ringmpi.backends.numpy.attend import NumpyBackend
from ringmpi.comm.launcher import launched_rank
from ringmpi.comm.mpi import MPIRing

WHAT, RANK, CALL = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sys.argv = ["ringmpi", *sys.argv[4:]]
SLOW_SECONDS = 0.25
CALL_SECONDS = 0.015  # of all ranks, so that they go at one pace
HOP_SECONDS = 0.25
BUDGET = 200  # rows x keys of a call
calls = 0


def happen():
    if WHAT.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, WHAT))
    elif WHAT != "PACE":
        Path(WHAT).touch()


def counted(method):
    def call(*arguments, **options):
        global calls
        calls += 1
        if WHAT not in ("NOTHING", "HOPS"):
            time.sleep(CALL_SECONDS)
            if launched_rank(os.environ) == RANK and calls >= CALL > 0:
                happen() if calls == CALL else time.sleep(SLOW_SECONDS)
        return method(*arguments, **options)

    return call


def late(method):
    def start(*arguments):
        flight = method(*arguments)
        if WHAT == "HOPS":
            landed, soonest = flight.landed, time.monotonic() + HOP_SECONDS
            flight.landed = lambda: time.monotonic() >= soonest and landed()
        return flight

    return start


MPIRing.start = late(MPIRing.start)
for backend in (NumpyBackend, NativeBackend):
    backend.call_budget = lambda self, heads, dtype: BUDGET
    for name in ("attend", "attend_backward"):
        setattr(backend, name, counted(getattr(backend, name)))
cli.main()
