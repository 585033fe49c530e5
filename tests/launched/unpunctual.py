"""`ringmpi` with a rank that is stopped as MPI starts or ends: python unpunctual.py HOW RANK ARGUMENT...

HOW: _start or _end, the function of ringmpi/comm/lifetime.py.
"""

import os
import signal
import sys
import time

from ringmpi import cli
from ringmpi.comm import lifetime
from ringmpi.comm.launcher import launched_rank

HOW, RANK = sys.argv[1], int(sys.argv[2])
sys.argv = ["ringmpi", *sys.argv[3:]]
original = getattr(lifetime, HOW)


def stopping(*arguments):
    if launched_rank(os.environ) == RANK:
        sys.stdout.write(f"rank {RANK} does STOP at {time.time()}\n")
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGSTOP)
    return original(*arguments)


setattr(lifetime, HOW, stopping)
cli.main()
