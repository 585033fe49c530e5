"""What the ring loop needs of a transport: post messages, make progress, know when they have landed."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple, Protocol


class Tag(IntEnum):
    """What may travel between the same two ranks at once: with two ranks, left is right."""

    UP = 1
    DOWN = 2
    ROLL_CALL = 3
    GRADIENTS = 4
    INPUT = 5
    REPORTS = 6
    ORDERS = 7
    LINKS = 8


class Message(NamedTuple):
    """One contiguous array to or from a peer. The receiver must expect exactly this many bytes.

    tag tells apart what travels between the same two ranks at once (two ranks: left is right); messages of one tag
    arrive in the order in which both ends list them.
    """

    peer: int
    tag: int
    array: Any


class Flight(Protocol):
    """The messages of one hop, on their way.

    Until `landed` has returned True the arrays to be sent must not be written, and those to be received neither
    read nor written.
    """

    def landed(self) -> bool:
        """Push the transfers on as far as they go; True once all have completed. Quick where there is nothing to do.

        Raises RingError on a message of the wrong length.
        """
        ...

    def waiting_for(self) -> list[int]:
        """Peers whose messages have not completed: whom to blame when it takes too long."""
        ...


class Communicator(Protocol):
    """A periodic ring of `size` ranks; `rank` is the position of this one."""

    @property
    def rank(self) -> int:
        """Position in the ring."""
        ...

    @property
    def size(self) -> int:
        """Ranks in the ring."""
        ...

    @property
    def takes_device_memory(self) -> bool:
        """Whether messages may lie in the memory of a device."""
        ...

    def start(self, sends: list[Message], receives: list[Message]) -> Flight:
        """Post all receives, then all sends; returns at once."""
        ...
