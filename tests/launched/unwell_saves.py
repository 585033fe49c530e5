"""stopping.py where a checkpoint cannot be written: python unwell_saves.py HOW RANK SAVES ARGUMENT_OF_STOPPING...

HOW      FULL: no room for the file of the rank; READONLY: nothing can be created there; MANIFEST: no room for that;
         MEMORY: too little memory to write; REQUEUE: no room for that word; STAMPS: the rank sees another time of the
         input; EARLY: it gets SIGUSR1 before it has opened the input
RANK     launch rank to which it happens; for MANIFEST 0
SAVES    in so many saves, from the first one on
"""

import errno
import os
import resource
import runpy
import signal
import sys
from pathlib import Path

import h5py

from ringmpi.checkpoint import keeper, lifecycle
from ringmpi.comm.launcher import launched_rank
from ringmpi.job import run
from ringmpi.storage import generations

HOW, RANK, SAVES = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
STOPPING = str(Path(__file__).with_name("stopping.py"))
sys.argv = [STOPPING, *sys.argv[4:]]
ROOM_BYTES = 1000
create, saves = h5py.h5f.create, 0


def full(action, arguments):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM_BYTES if HOW == "FULL" else 10, limits[1]))
    try:
        return action(*arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def refused(*_arguments, **_options):
    raise OSError(errno.EROFS, "Unable to synchronously create file (Read-only file system)")


def read_only(action, arguments):
    h5py.h5f.create = refused
    try:
        return action(*arguments)
    finally:
        h5py.h5f.create = create


def no_memory(action, arguments):
    raise MemoryError("1 GiB")


HOW_TO = {"READONLY": read_only, "MEMORY": no_memory}


def unwell(action):
    def save(*arguments):
        global saves
        saves += 1
        if saves > SAVES:
            return action(*arguments)
        return HOW_TO.get(HOW, full)(action, arguments)

    return save


def at_another_time(path):
    return stamps(path) | {"mtime_ns": 1}


def told_early(path):
    os.kill(os.getpid(), signal.SIGUSR1)
    return inputs(path)


stamps, inputs = lifecycle.file_identity, run.Inputs
if launched_rank(os.environ) == RANK:
    match HOW:
        case "MANIFEST":
            generations.write_manifest = unwell(generations.write_manifest)
        case "REQUEUE":
            generations.replace_text = unwell(generations.replace_text)
        case "STAMPS":
            lifecycle.file_identity = at_another_time
        case "EARLY":
            run.Inputs = told_early
        case _:
            keeper.write_rank_state = unwell(keeper.write_rank_state)
runpy.run_path(STOPPING, run_name="__main__")
