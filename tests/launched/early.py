"""`ringmpi` with a rank to which something happens before MPI has started there: python early.py HOW RANK ARGUMENT...

HOW: IMPORT, INTERRUPT: it fails; SIGNAL: it gets SIGUSR1 as MPI starts
"""

import builtins
import os
import signal
import sys

from ringmpi import cli
from ringmpi.comm import lifetime
from ringmpi.comm.launcher import launched_rank

HOW, RANK = sys.argv[1], int(sys.argv[2])
sys.argv = ["ringmpi", *sys.argv[3:]]
load, start = builtins.__import__, lifetime._start


def failing(name, *arguments, **options):
    if name == cli.RUN_MODULE and launched_rank(os.environ) == RANK:
        raise ImportError("no library here") if HOW == "IMPORT" else KeyboardInterrupt
    return load(name, *arguments, **options)


def signalled(library):
    if launched_rank(os.environ) == RANK:
        os.kill(os.getpid(), signal.SIGUSR1)
    start(library)


if HOW == "SIGNAL":
    lifetime._start = signalled
else:
    builtins.__import__ = failing
cli.main()
