"""Orders during a pass: every rank may report to rank 0, and rank 0 alone gives orders, which all get in one order.

Two numbers a message, on the ring's own communicator, under tags of their own. So a collective that an order asks for
is begun by all ranks alike, though they learn of it at different moments: between two kernel calls, or while they wait.

    others -> 0    WANTS_STOP, DONE and, as the last word, LEFT
    0 -> all       SAVE, STOP and, as the last word, END

Last words leave nothing under way: whoever has read one knows that no more will come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from ringmpi.comm.mpi import MPIRing
from ringmpi.comm.protocol import Tag

TESTS = 10  # a test takes one packet in, and those of the hops may lie before an order; a test costs less than 1 us


class Notice(IntEnum):
    """What a rank may tell rank 0."""

    WANTS_STOP = 1
    DONE = 2
    LEFT = 3


class Order(IntEnum):
    """What rank 0 may tell all, itself included."""

    SAVE = 1
    STOP = 2
    END = 3


class Word(NamedTuple):
    """One message: a Notice or an Order, a number that goes with it (which signal), and who sent it."""

    kind: int
    number: int
    rank: int


class Orders:
    """The line between rank 0 and the others, for one pass.

    Parameters
    ----------
    ring : MPIRing
        Collective: every rank of it must open its Orders, and close them (`closed`) before it opens others.
    """

    def __init__(self, ring: MPIRing) -> None:
        self._cart, self._rank, self._size = ring.cart, ring.rank, ring.size
        self._reported: deque[Word] = deque()  # by rank 0 to itself, and what it has ordered itself
        self._ordered: deque[Word] = deque()
        self._sent: list[tuple[MPI.Request, NDArray[np.int64]]] = []
        # A receive for each sender: between hosts, MPICH 5.0.2 on UCX loses messages to a receive from any source.
        self._senders = [0] if self._rank else list(range(1, self._size))
        self._heard = np.empty((len(self._senders), 2), np.int64)
        self._listening = [self._listen(nth) for nth in range(len(self._senders))]

    def report(self, kind: Notice, number: int = 0) -> None:
        """Tell rank 0. Returns at once."""
        if self._rank:
            self._send(0, Tag.REPORTS, kind, number)
        else:
            self._reported.append(Word(kind, number, 0))

    def reports(self) -> Iterator[Word]:
        """What has been reported since the last look. On rank 0."""
        while self._reported:
            yield self._reported.popleft()
        for nth in MPI.Request.Testsome(self._listening) or ():  # of all senders at once
            yield self._read(nth, Notice.LEFT)

    def give(self, kind: Order, number: int = 0) -> None:
        """Order all ranks. On rank 0, which gets the order too."""
        for rank in range(1, self._size):
            self._send(rank, Tag.ORDERS, kind, number)
        self._ordered.append(Word(kind, number, 0))

    def order(self) -> Word | None:
        """The next order, if one is here."""
        if self._rank == 0:
            return self._ordered.popleft() if self._ordered else None
        line = self._listening[0]
        return self._read(0, Order.END) if line and any(line.Test() for _ in range(TESTS)) else None

    def closed(self) -> bool:
        """Whether all last words have been read and all messages are away."""
        self._sent = [(request, kept) for request, kept in self._sent if not request.Test()]
        return all(line == MPI.REQUEST_NULL for line in self._listening) and not self._sent

    def _send(self, rank: int, tag: int, kind: int, number: int) -> None:
        word = np.array([kind, number], np.int64)
        self._sent.append((self._cart.Isend([word, MPI.INT64_T], rank, tag), word))

    def _read(self, nth: int, last: int) -> Word:
        """The message that has come from a sender; `last`: what one says when it says no more."""
        kind, number = self._heard[nth].tolist()
        if kind != last:  # a receive that is left over would never end
            self._listening[nth] = self._listen(nth)
        return Word(kind, number, self._senders[nth])

    def _listen(self, nth: int) -> MPI.Request:
        """Wait for the next message of a sender."""
        tag = Tag.ORDERS if self._rank else Tag.REPORTS
        return self._cart.Irecv([self._heard[nth], MPI.INT64_T], self._senders[nth], tag)
