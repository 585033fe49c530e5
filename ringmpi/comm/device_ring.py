"""Messages between arrays that lie on devices: straight from there where MPI can, else through memory of the host.

Through the host a hop is three steps, each behind the ones of earlier hops:

    copy down, send          what leaves
    receive, copy up         what comes

Nothing waits for a copy: whoever asks whether any flight has landed pushes all of them on.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from ringmpi.comm.protocol import Communicator, Flight, Message


class Mark(Protocol):
    """A place in the order of what a device was asked for; that of a copy is where the copy ends."""

    @property
    def done(self) -> bool:
        """Whether the device has come past it."""
        ...


class Ferry(Protocol):
    """What brings arrays of a device to the host and back. Copies are done one after the other, as they were asked for.

    A copy begins when all that the device was asked for before a mark is done.
    """

    def complete(self) -> None:
        """Wait until the device has done all that it was asked for."""
        ...

    def as_bytes(self, array: Any) -> Any:
        """The bytes of an array where they lie, as MPI takes them from a device."""
        ...

    def room(self, nbytes: int) -> Any:
        """Bytes on the host, to be given back."""
        ...

    def give_back(self, room: Any) -> None:
        """For others to use."""
        ...

    def mark(self) -> Mark:
        """Where that ends which the device has been asked for."""
        ...

    def down(self, array: Any, room: Any, after: Mark) -> Mark:
        """To the host, behind a mark."""
        ...

    def up(self, room: Any, array: Any, after: Mark) -> Mark:
        """To the device, behind a mark."""
        ...


def reaching(ferry: Ferry | None, comm: Communicator) -> Communicator:
    """A ring whose messages reach where arrays lie; `comm` itself where they lie on the host (None)."""
    return comm if ferry is None else DeviceRing(comm, ferry)


class DeviceRing:
    """The ring of `comm`, for arrays on a device."""

    def __init__(self, comm: Communicator, ferry: Ferry) -> None:
        self._comm, self._ferry = comm, ferry
        self._under_way: deque[_Ferried] = deque()

    @property
    def rank(self) -> int:
        """Position in the ring."""
        return self._comm.rank

    @property
    def size(self) -> int:
        """Ranks in the ring."""
        return self._comm.size

    @property
    def takes_device_memory(self) -> bool:
        """It does, in one way or the other."""
        return True

    @property
    def copying(self) -> bool:
        """Whether anything waits for a copy of the device of this rank."""
        return any(flight.copying for flight in self._under_way)

    def start(self, sends: list[Message], receives: list[Message]) -> Flight:
        """Post all receives, then all sends, those through the host when they are down there."""
        if self._comm.takes_device_memory:
            self._ferry.complete()  # MPI knows nothing of what a device is still to do
            return self._comm.start(self._where_they_lie(sends), self._where_they_lie(receives))
        flight = _Ferried(self, self._comm, self._ferry, sends, receives)
        self._under_way.append(flight)
        return flight

    def push(self) -> None:
        """Let all flights go on. Messages of one tag leave in the order in which they were asked for."""
        may_send = True
        for flight in self._under_way:
            may_send = flight.push(may_send=may_send)
        while self._under_way and self._under_way[0].over:
            self._under_way.popleft()

    def _where_they_lie(self, messages: list[Message]) -> list[Message]:
        return [message._replace(array=self._ferry.as_bytes(message.array)) for message in messages]


class _Ferried:
    """The messages of one hop, through the host."""

    def __init__(
        self, ring: DeviceRing, comm: Communicator, ferry: Ferry, sends: list[Message], receives: list[Message]
    ) -> None:
        self._ring, self._comm, self._ferry = ring, comm, ferry
        self._arrays = [message.array for message in receives]
        self._leaving, self._coming = self._rooms(sends), self._rooms(receives)
        self._incoming = comm.start([], self._coming)
        # What arrives waits for what had to do with its room when it was asked for, not for kernels of later.
        self._since = since = ferry.mark()
        pairs = zip(sends, self._leaving, strict=True)
        self._down = [ferry.down(there.array, here.array, since) for there, here in pairs]
        self._outgoing: Flight | None = None
        self._up: list[Mark] | None = None
        self.over = False

    @property
    def copying(self) -> bool:
        """Whether it waits for a copy."""
        return self._outgoing is None or (self._up is not None and not _all_done(self._up))

    def landed(self) -> bool:
        self._ring.push()
        return self.over

    def waiting_for(self) -> list[int]:
        """Nobody, while a copy on this rank is what is waited for."""
        if self._ring.copying or self._outgoing is None:
            return []
        return sorted({*self._incoming.waiting_for(), *self._outgoing.waiting_for()})

    def push(self, *, may_send: bool) -> bool:
        """Go on as far as it goes; whether all has been sent that is to be sent."""
        if self._outgoing is None and may_send and _all_done(self._down):
            self._outgoing = self._comm.start(self._leaving, [])
        if self._up is None and self._incoming.landed():
            pairs = zip(self._coming, self._arrays, strict=True)
            self._up = [self._ferry.up(message.array, array, self._since) for message, array in pairs]
        if self._outgoing is None:
            return False
        sent = self._outgoing.landed()
        if not self.over and sent and self._up is not None and _all_done(self._up):
            self.over = True
            for message in (*self._leaving, *self._coming):
                self._ferry.give_back(message.array)
        return True

    def _rooms(self, messages: list[Message]) -> list[Message]:
        """The same messages, with arrays of the host in the place of those of the device."""
        return [message._replace(array=self._ferry.room(message.array.nbytes)) for message in messages]


def _all_done(copies: list[Mark]) -> bool:
    return all(copy.done for copy in copies)
