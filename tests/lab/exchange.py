"""Sends a block around the ring of launch ranks and prints the median milliseconds of a step: exchange.py BYTES."""

import statistics
import sys
import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
sent, got = np.ones(int(sys.argv[1]), np.uint8), np.empty(int(sys.argv[1]), np.uint8)
seconds = []
for _ in range(9):
    comm.Barrier()
    begun = time.perf_counter()
    comm.Sendrecv(sent, (comm.rank + 1) % comm.size, recvbuf=got, source=(comm.rank - 1) % comm.size)
    comm.Barrier()
    seconds.append(time.perf_counter() - begun)
hosts = comm.gather(MPI.Get_processor_name())
if comm.rank == 0:
    sys.stdout.write(f"{1e3 * statistics.median(seconds)} {','.join(hosts)}\n")
