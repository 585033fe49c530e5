"""What stands beside the ring loop, and may stop it or save its state: the protocol, and a guard that does nothing.

The one that does something is in checkpoint/pass_guard.py.
"""

from __future__ import annotations

from typing import Protocol


class Guard(Protocol):
    """Asked by the loop at fixed places. All ranks get the same answers, in the end: see checkpoint/pass_guard.py."""

    def goes_on(self, step: int) -> bool:
        """Whether to begin this ring step; False: leave the loop."""
        ...

    def attends(self) -> bool:
        """Whether kernel calls are to be made; False: hops only, since the others wait for them."""
        ...

    def look(self) -> bool:
        """Whether there was an order, which has then been obeyed.

        To be called where the state of the pass can be saved: between kernel calls, and while a hop is waited for.
        Quick where there is none.
        """
        ...

    def settles(self) -> bool:
        """Whether all messages that are under way must land at the end of this step, also those not yet due."""
        ...

    def settled(self) -> None:
        """They have landed."""
        ...


class Unguarded:
    """Lets a pass run to its end."""

    def goes_on(self, step: int) -> bool:
        """Yes."""
        return True

    def attends(self) -> bool:
        """Yes."""
        return True

    def look(self) -> bool:
        """There is never an order."""
        return False

    def settles(self) -> bool:
        """No."""
        return False

    def settled(self) -> None:
        """Nothing to do."""


UNGUARDED: Guard = Unguarded()
