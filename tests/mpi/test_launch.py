"""The launcher does what the other tests on real ranks rely on."""

import os
import time

import numpy as np
import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

WORLD = MPI.COMM_WORLD
ALL_RANK_COUNTS = [1, 2, 3, 4, 5, 7]


@pytest.mark.parallel(ALL_RANK_COUNTS)
def test_as_many_ranks_meet_as_the_launcher_was_asked_for():
    # a launcher of another MPI library starts n times one rank, with no more than a warning
    parallel_assert(os.environ["RANKS_ASKED"] == str(WORLD.size))


@pytest.mark.parallel(ALL_RANK_COUNTS)
def test_a_message_travels_once_around_the_ring():
    to_right, to_left = (WORLD.rank + 1) % WORLD.size, (WORLD.rank - 1) % WORLD.size
    visiting, met = np.array([WORLD.rank]), []
    for _ in range(WORLD.size):
        met.append(int(visiting[0]))
        received = np.empty_like(visiting)
        WORLD.Sendrecv(visiting, to_right, recvbuf=received, source=to_left)
        visiting = received
    expected = [(WORLD.rank - step) % WORLD.size for step in range(WORLD.size)]
    parallel_assert(met == expected and visiting[0] == WORLD.rank)


@pytest.mark.parallel([3, 4])
@pytest.mark.skipif("EXPECT_RENDEZVOUS" not in os.environ, reason="rendezvous is forced by `make test-lab` only")
def test_even_a_small_message_waits_for_its_receiver():
    message, done = bytearray(512), False
    if WORLD.rank == 0:
        send = WORLD.Isend([message, MPI.BYTE], 1)
        waited_until = time.monotonic() + 0.2
        while time.monotonic() < waited_until and not done:
            done = send.Test()
    WORLD.barrier()
    if WORLD.rank == 0:
        send.Wait()
    elif WORLD.rank == 1:
        WORLD.Recv([message, MPI.BYTE], 0)
    parallel_assert(not done)
