"""What ranks find when they meet: a program of its own, `mpirun -n 2 python -m ringmpi.comm.about_job`.

Rank 0 writes a JSON object a line, each as soon as it is known, so that of a job that hangs one sees how far it came.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
from mpi4py import MPI

from ringmpi.comm.cuda_support import says_cuda_aware
from ringmpi.process.cores import own_cores

MESSAGE_BYTES = 32 << 20  # no library sends that before the receiver asks for it
ROUNDS = 3
REST_SECONDS = 0.05


def who(comm: MPI.Intracomm) -> dict[str, Any]:
    """How many have met, where they are, and the cores that each may use."""
    return {
        "ranks": comm.size,
        "nodes": comm.allgather(MPI.Get_processor_name()),
        "cores": comm.allgather(list(own_cores())),
    }


def progress(comm: MPI.Intracomm) -> dict[str, Any]:
    """How fast the first two ranks send to each other, and how much of a message moves while neither calls MPI.

    "GB a second"; "moves alone": 0 where nothing moves, 1 where all has arrived when MPI is asked again.
    """
    mine, theirs = np.zeros((2, MESSAGE_BYTES), np.uint8)
    needed = min(_seconds(comm, mine, theirs, rest=0.0) for _ in range(1 + ROUNDS))
    rest = REST_SECONDS + 4 * needed
    left = min(_seconds(comm, mine, theirs, rest=rest) for _ in range(ROUNDS))
    needed, left = comm.allreduce(needed, MPI.MAX), comm.allreduce(left, MPI.MAX)
    return {"GB a second": MESSAGE_BYTES / needed / 1e9, "moves alone": max(0.0, 1 - left / needed)}


def _seconds(comm: MPI.Intracomm, mine: Any, theirs: Any, *, rest: float) -> float:
    """Seconds in MPI for one message each way, after a rest in which MPI is not called."""
    comm.Barrier()
    began, peer = time.perf_counter(), 1 - comm.rank
    requests = [comm.Irecv([theirs, MPI.BYTE], peer), comm.Isend([mine, MPI.BYTE], peer)]
    if rest:
        time.sleep(rest)
        began = time.perf_counter()
    MPI.Request.Waitall(requests)
    return time.perf_counter() - began


def cuda(_comm: MPI.Intracomm) -> dict[str, Any]:
    """Whether the library says that it takes addresses of GPU memory; None: it does not say."""
    return {"CUDA": says_cuda_aware()}


def main() -> None:
    """Write all of it."""
    comm = MPI.COMM_WORLD
    for fact in (who, cuda, progress) if comm.size == 2 else (who, cuda):
        found = fact(comm)
        if comm.rank == 0:
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
