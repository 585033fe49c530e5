"""`ringmpi` with a rank that is stopped again and again in its pass: python halting.py RANK SHARE ARGUMENT...

SHARE: of its time, from 0 to 1.
"""

import os
import subprocess
import sys

from ringmpi import cli
from ringmpi.comm.launcher import launched_rank
from ringmpi.passes.forward_pass import ForwardPass

RANK, SHARE = int(sys.argv[1]), float(sys.argv[2])
sys.argv = ["ringmpi", *sys.argv[3:]]
STOPPER = """
import os, signal, sys, time
process, share, period = int(sys.argv[1]), float(sys.argv[2]), 0.05

def end(*signal_and_frame):
    os.kill(process, signal.SIGCONT)
    sys.exit()

signal.signal(signal.SIGTERM, end)
while os.getppid() == process:
    os.kill(process, signal.SIGSTOP)
    time.sleep(share * period)
    os.kill(process, signal.SIGCONT)
    time.sleep((1 - share) * period)
"""
loop = ForwardPass.loop


def halting(*arguments):
    stopper = None
    if launched_rank(os.environ) == RANK:
        stopper = subprocess.Popen([sys.executable, "-c", STOPPER, str(os.getpid()), str(SHARE)])
    yield from loop(*arguments)
    if stopper is not None:
        stopper.terminate()
        stopper.wait()


ForwardPass.loop = halting
cli.main()
