"""Memory that MPI reads or writes is not freed under its hands, whatever is raised meanwhile."""

from __future__ import annotations

from types import TracebackType
from typing import Any, ClassVar


class Held:
    """Keeps things alive until they are released, or until the block ends without an exception.

    An exception, Ctrl-C above all, may leave messages under way for which nobody waits any more. MPI goes on with
    them, so what they read and write stays for as long as the process.
    """

    held: ClassVar[set[Held]] = set()

    def __init__(self, *things: Any) -> None:
        self.things = things
        self.held.add(self)

    def release(self) -> None:
        """MPI is done with them."""
        self.held.discard(self)

    def __enter__(self) -> Held:
        """Held already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release them, unless it is not known how far MPI is."""
        if error is None:
            self.release()
