"""`ringmpi` with a rank that fails in mid-ring: python faulty.py HOW RANK ARGUMENT...

HOW: KILL, STOP, TERM or INT (the signal), RAISE (an exception), ERROR (one of ringmpi's own). Prints what it does, and
when.
"""

import os
import signal
import sys
import time

from mpi4py import MPI

from ringmpi import cli
from ringmpi.backends import get_backend
from ringmpi.errors import BackendError

HOW, RANK = sys.argv[1], int(sys.argv[2])
sys.argv = ["ringmpi", *sys.argv[3:]]
Kernel = type(get_backend())
attend, calls = Kernel.attend, []


def failing(self, *arguments, **options):
    calls.append(1)
    if MPI.COMM_WORLD.rank == RANK and len(calls) == 3:
        sys.stdout.write(f"rank {RANK} does {HOW} at {time.time()}\n")
        sys.stdout.flush()
        if HOW in ("KILL", "STOP", "TERM", "INT"):
            os.kill(os.getpid(), getattr(signal, f"SIG{HOW}"))
        elif HOW == "RAISE":
            raise ZeroDivisionError("a fault of one rank")
        elif HOW == "ERROR":
            raise BackendError("the accelerator fell off the bus")
    return attend(self, *arguments, **options)


Kernel.attend = failing
cli.main()
