"""`ringmpi` with a rank that fails before MPI has started there: python early.py HOW RANK ARGUMENT..."""

import builtins
import os
import sys

from ringmpi import cli
from ringmpi.comm.launcher import launched_rank

HOW, RANK = sys.argv[1], int(sys.argv[2])
sys.argv = ["ringmpi", *sys.argv[3:]]
load = builtins.__import__


def failing(name, *arguments, **options):
    if name == cli.RUN_MODULE and launched_rank(os.environ) == RANK:
        raise ImportError("no library here") if HOW == "IMPORT" else KeyboardInterrupt
    return load(name, *arguments, **options)


builtins.__import__ = failing
cli.main()
