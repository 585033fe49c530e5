"""What one rank did: seconds, bytes and pairs of each ring step, seconds of reading and writing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ringmpi.comm.protocol import Message
from ringmpi.core.itinerary import Step

Named = Callable[[str], AbstractContextManager[None]]


class RankTimeline:
    """Counters of one rank.

    attend_seconds                float64 [steps]: in kernel calls, MPI progress within them included
    flight_seconds                float64 [steps]: while any message was under way, as far as this rank could see
    wait_seconds                  float64 [steps]: of these, those without work: a hop that was due had not landed
    bytes_sent, bytes_received    int64 [steps]: what travels in the pass, counted where messages are posted
    pairs_attended                int64 [steps]: counted by the kernels, over batch and query heads
    read_seconds, write_seconds   float64 []: this rank's shards of the inputs; its shard of the output

    Parameters
    ----------
    steps : int
    stage : str
        What the pass is called.
    named : function (name) -> context manager
        Entered with the work of each step (`Memory.named`), so that profilers show it.
    """

    def __init__(self, steps: int, stage: str = "", named: Named = lambda name: nullcontext()) -> None:
        self.attend_seconds: NDArray[np.float64] = np.zeros(steps)
        self.flight_seconds: NDArray[np.float64] = np.zeros(steps)
        self.wait_seconds: NDArray[np.float64] = np.zeros(steps)
        self.bytes_sent: NDArray[np.int64] = np.zeros(steps, np.int64)
        self.bytes_received: NDArray[np.int64] = np.zeros(steps, np.int64)
        self.pairs_attended: NDArray[np.int64] = np.zeros(steps, np.int64)
        self.read_seconds: NDArray[np.float64] = np.zeros(())
        self.write_seconds: NDArray[np.float64] = np.zeros(())
        self._steps, self._now = steps, 0
        self._last_look, self._under_way = 0.0, False
        self._saved = 0.0  # seconds in saves, which no counter holds
        self._watch: Callable[[int], None] = lambda pairs: None
        self._stage, self._named = stage, named

    @classmethod
    def joined(cls, timelines: Sequence[RankTimeline]) -> RankTimeline:
        """Passes one after the other, as one."""
        whole = cls(sum(timeline._steps for timeline in timelines))
        for name, array in whole.counters().items():
            parts = [getattr(timeline, name) for timeline in timelines]
            array[...] = np.concatenate(parts) if array.ndim else sum(parts)
        return whole

    def watched_by(self, watch: Callable[[int], None]) -> None:
        """Have `watch(pairs)` called after each kernel call, about every 0.3 s. It must be quick and not raise."""
        self._watch = watch

    def counters(self) -> dict[str, NDArray[np.float64] | NDArray[np.int64]]:
        """All of them, by name."""
        return {name: array for name, array in vars(self).items() if not name.startswith("_")}

    @property
    def step(self) -> int:
        """The ring step that this rank is in, or was in last."""
        return self._now

    def where(self) -> str:
        """Where this rank is, for messages."""
        return f"ring step {self._now + 1} of {self._steps}"

    def posted(self, step: Step, sends: list[Message], receives: list[Message]) -> None:
        """Count the bytes of a hop that starts."""
        self.bytes_sent[step.index] += sum(message.array.nbytes for message in sends)
        self.bytes_received[step.index] += sum(message.array.nbytes for message in receives)
        self.looked(step, under_way=True)

    def looked(self, step: Step, *, under_way: bool) -> None:
        """Whether any message is under way now; if one was at the last look, the time since then counts as flight."""
        now = perf_counter()
        if self._under_way:
            self.flight_seconds[step.index] += now - self._last_look
        self._last_look, self._under_way = now, under_way

    def attended(self, step: Step, pairs: int) -> None:
        """Count the pairs of a kernel call."""
        self.pairs_attended[step.index] += pairs
        self._watch(pairs)

    @contextmanager
    def attending(self, step: Step) -> Iterator[None]:
        """Time the work of a step."""
        self._now = step.index
        with self._named(f"{self._stage}, {self.where()}"), self._clocked(self.attend_seconds, step.index):
            yield

    @contextmanager
    def waiting(self, step: Step) -> Iterator[None]:
        """Time until a hop has landed."""
        with self._clocked(self.wait_seconds, step.index):
            yield

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Time the reading of the inputs."""
        with self._clocked(self.read_seconds, ()):
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Time the writing of the output."""
        with self._clocked(self.write_seconds, ()):
            yield

    @contextmanager
    def saving(self) -> Iterator[None]:
        """A save of the state, between kernel calls or in a wait: it is neither work nor waiting nor flight."""
        start = perf_counter()
        yield
        seconds = perf_counter() - start
        self._saved += seconds
        self._last_look += seconds

    @contextmanager
    def _clocked(self, seconds: NDArray[np.float64], where: int | tuple[()]) -> Iterator[None]:
        start = perf_counter() - self._saved
        yield
        seconds[where] += perf_counter() - self._saved - start
