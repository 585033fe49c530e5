"""What the ranks of a run are to do."""

from __future__ import annotations

from dataclasses import dataclass

from ringmpi.asking.question import Question
from ringmpi.backends.base import Backend
from ringmpi.checkpoint.state_keeper import StateKeeper
from ringmpi.ring import Ring


@dataclass(frozen=True)
class Job:
    """What is to be computed, with what, and what keeps the state of it.

    travel : "auto", "keys" or "queries" where gradients are asked for, else None
    """

    ring: Ring
    question: Question
    backend: Backend
    keeper: StateKeeper
    travel: str | None

    @property
    def keeps_inputs(self) -> bool:
        """Whether queries and keys are needed after the forward pass."""
        return self.travel is not None or self.question.late is not None
