"""What a run asks of whoever keeps its state, and who keeps none: `Uninterrupted`, for a run without [checkpoint]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Protocol

from ringmpi.asking.question import Question
from ringmpi.checkpoint.past import Past
from ringmpi.checkpoint.saved_state import PassState
from ringmpi.comm.mpi import MPIRing
from ringmpi.comm.protocol import Flight
from ringmpi.core.itinerary import Itinerary
from ringmpi.passes.guard import UNGUARDED, Guard
from ringmpi.passes.timeline import RankTimeline
from ringmpi.passes.visits import BEGINNING, Start, VisitLog
from ringmpi.storage.attempts import Attempts


class Pass(Protocol):
    """A forward or backward pass."""

    itinerary: Itinerary
    timeline: RankTimeline
    visits: VisitLog
    after: int  # the last ring step that runs before this one have done, where gradients travel

    @property
    def stage(self) -> str:
        """What it is called among the stages of a run."""
        ...


Loop = Callable[[Guard], Iterator[Flight]]


class StateKeeper(Protocol):
    """What a run asks of whoever keeps its state."""

    @property
    def past(self) -> Past | None:
        """Where it goes on; None: at its beginning."""
        ...

    @property
    def checksums(self) -> Mapping[str, str]:
        """Of the arrays of the input, as far as they are known."""
        ...

    def start(self, stage: str) -> Start | None:
        """Where a pass begins; None where it is over. Never None for FORWARD: its start says what is absorbed."""
        ...

    def check_input(self, question: Question, checksums: dict[str, str]) -> None:
        """Refuse to go on with an input that has changed since the run began. Collective."""
        ...

    def drive(self, one: Pass, loop: Loop, state: Callable[[], PassState], *, anywhere: bool) -> bool:
        """Run the loop of a pass; whether it has come to its end. Collective."""
        ...

    def attempts(self, pairs: dict[str, int]) -> Attempts | None:
        """What the output says of all runs that came to it; `pairs`: those of this one, over all ranks, by stage."""
        ...

    def clear(self) -> None:
        """The output is in place: nothing is to be kept any more. On rank 0."""
        ...

    def stop(self, go_on: str) -> None:
        """Say why the run has stopped; `go_on`: the command that goes on. Collective."""
        ...


class Uninterrupted:
    """A run that keeps nothing."""

    past: Past | None = None
    checksums: Mapping[str, str] = MappingProxyType({})

    def __init__(self, transport: MPIRing) -> None:
        self._transport = transport

    def start(self, stage: str) -> Start | None:
        """Where a pass begins."""
        return BEGINNING

    def check_input(self, question: Question, checksums: dict[str, str]) -> None:
        """There is nothing to compare with."""

    def attempts(self, pairs: dict[str, int]) -> Attempts | None:
        """Nothing is recorded."""
        return None

    def clear(self) -> None:
        """There is nothing."""

    def drive(self, one: Pass, loop: Loop, state: Callable[[], PassState], *, anywhere: bool) -> bool:
        """Run the loop of a pass to its end."""
        self._transport.drive(loop(UNGUARDED), one.timeline.where)
        return True

    def stop(self, go_on: str) -> None:
        """It never stops."""
