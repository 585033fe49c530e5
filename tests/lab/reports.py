"""Ranks report to rank 0 while blocks travel, as in a pass that is saved. Prints how many it heard: reports.py EACH."""

import sys
import time

import numpy as np
from mpi4py import MPI

from ringmpi.comm.orders import Notice, Orders
from ringmpi.ring import Ring

BLOCK_BYTES, BLOCKS, SECONDS = 1 << 20, 3, 8.0

each = int(sys.argv[1])
with Ring(MPI.COMM_WORLD) as ring:
    orders, sent, heard = Orders(ring.transport), 0, 0
    rng, block = np.random.default_rng(ring.rank), np.ones(BLOCK_BYTES, np.uint8)
    blocks, flight = [np.empty_like(block) for _ in range(BLOCKS)], []
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and heard < each * (ring.size - 1):
        if blocks and MPI.Request.Testall(flight):
            near, far = (ring.rank + 1) % ring.size, (ring.rank - 1) % ring.size
            flight = [ring.transport.cart.Irecv(blocks.pop(), far), ring.transport.cart.Isend(block, near)]
        if ring.rank == 0:
            heard += len(list(orders.reports()))
        elif sent < each and rng.random() < 0.02:
            orders.report(Notice.WANTS_STOP, sent)
            sent += 1
        time.sleep(0.001)
    if ring.rank == 0:
        sys.stdout.write(f"{heard}\n")
        sys.stdout.flush()
        MPI.COMM_WORLD.Abort(0)  # the others still listen for orders
