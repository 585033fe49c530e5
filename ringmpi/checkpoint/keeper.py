"""Checkpoints of a run: saved while its passes go on, and where a new run begins.

A run without [checkpoint] has `Uninterrupted` in its place: nothing is asked, sent or written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Protocol

from ringmpi import __version__
from ringmpi.checkpoint.pass_guard import PassGuard, Stop
from ringmpi.checkpoint.past import Past
from ringmpi.checkpoint.saved_state import PassState, tables_of
from ringmpi.checkpoint.watch import Watch
from ringmpi.comm.agreement import LONG_WORK, from_first
from ringmpi.comm.mpi import MPIRing
from ringmpi.comm.protocol import Flight
from ringmpi.core.itinerary import Itinerary
from ringmpi.core.slices import Slices
from ringmpi.errors import StorageError
from ringmpi.guard import UNGUARDED, Guard
from ringmpi.question import Question
from ringmpi.storage.attempts import AttemptsRecord
from ringmpi.storage.generations import Checkpoints
from ringmpi.storage.manifest import Manifest, RankFile
from ringmpi.storage.rank_state import write_rank_state
from ringmpi.timeline import RankTimeline
from ringmpi.visits import BEGINNING, Start

log = logging.getLogger("ringmpi")
SAVING = "saving the state"


class Pass(Protocol):
    """A forward or backward pass."""

    itinerary: Itinerary
    timeline: RankTimeline


Loop = Callable[[Guard], Iterator[Flight]]


class Uninterrupted:
    """A run that keeps nothing."""

    past: Past | None = None
    stopped: Stop | None = None
    checksums: Mapping[str, str] = MappingProxyType({})

    def __init__(self, ring: MPIRing) -> None:
        self._ring = ring

    def start(self, stage: str) -> Start | None:
        """Where a pass begins."""
        return BEGINNING

    def check_input(self, question: Question, checksums: dict[str, str]) -> None:
        """There is nothing to compare with."""

    def attempts(self, pairs: dict[str, int]) -> AttemptsRecord | None:
        """Nothing is recorded."""
        return None

    def clear(self) -> None:
        """There is nothing."""

    def drive(self, one: Pass, loop: Loop, state: Callable[[], PassState], *, anywhere: bool) -> bool:
        """Run the loop of a pass to its end."""
        self._ring.drive(loop(UNGUARDED), one.timeline.where)
        return True


@dataclass
class Keeper:
    """A run that keeps its state.

    Attributes
    ----------
    identity, layout : dict
        Of this run (past.py).
    attempt : dict
        What is recorded of this run: started, ranks, hosts.
    past : Past or None
        Where it goes on.
    number : int
        Of the next generation.
    stamps : dict
        Size and time of change of the input.
    contents : dict
        These, and the checksums of its arrays.
    stopped : Stop or None
        The same on all ranks, once a pass has been driven.
    newest : int or None
        Number of the newest generation that is known to be good.
    """

    ring: MPIRing
    checkpoints: Checkpoints
    watch: Watch
    identity: dict[str, Any]
    layout: dict[str, Any]
    attempt: dict[str, Any]
    past: Past | None
    number: int
    stamps: dict[str, int]
    contents: dict[str, Any] = field(default_factory=dict)
    stopped: Stop | None = None
    newest: int | None = None
    _pairs: dict[str, int] = field(default_factory=dict)
    _starts: dict[str, Start | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """The generation that the run goes on from is the newest good one."""
        self.newest = self.past.generation.number if self.past else None

    def start(self, stage: str) -> Start | None:
        """Where a pass begins; None where it is over."""
        if stage not in self._starts:
            self._starts[stage] = self.past.start(stage) if self.past else BEGINNING
        return self._starts[stage]

    def check_input(self, question: Question, checksums: dict[str, str]) -> None:
        """Refuse to go on with an input that has changed since the run began. Collective.

        Parameters
        ----------
        checksums : dict
            Of the arrays that all ranks together have read whole. The others are looked at only if the file has
            changed: those that are not needed any more are not read in vain.

        Raises
        ------
        StorageError
            On all ranks, with the names of the arrays.
        """
        before = self.past.manifest.progress["input"] if self.past else {}
        known: dict[str, str] = before.get("checksums", {})
        changed = any(before.get(key) != stamp for key, stamp in self.stamps.items())
        unread = [name for name in question.arrays if name not in checksums] if before and changed else []
        contents = from_first(
            self.ring, "reading the input", lambda: {name: str(question.arrays[name].content()) for name in unread}
        )
        found = checksums | contents
        if wrong := [
            name for name in found if before and known.get(name, "" if changed else found[name]) != found[name]
        ]:
            error = StorageError(
                f"input {question.q.path}: {' and '.join(wrong)} cannot be shown to be what the checkpoint was made "
                f"with. Put the input back, or start over with --force."
            )
            error.on_all_ranks = True
            raise error
        self.contents = {**self.stamps, "checksums": known | found}

    def attempts(self, pairs: dict[str, int]) -> AttemptsRecord | None:
        """What the output says of all runs that came to it; `pairs`: those of this one, over all ranks, by stage."""
        return AttemptsRecord.of(self.identity, [*self._earlier, self.attempt | {"pairs": pairs}])

    def clear(self) -> None:
        """The output is in place: remove the generations. On rank 0."""
        self.checkpoints.clear()

    def drive(self, one: Pass, loop: Loop, state: Callable[[], PassState], *, anywhere: bool) -> bool:
        """Run the loop of a pass, saving what `state` gives; whether it has come to its end. Collective."""
        guard = PassGuard(
            self.ring, self.watch, lambda: self._save(state()), steps=len(one.itinerary.steps), anywhere=anywhere
        )
        self.ring.drive(loop(guard), one.timeline.where, guard.look)
        guard.finish()
        self.stopped = guard.stopped
        if self.stopped is None:
            self._note(state())
        return self.stopped is None

    @property
    def checksums(self) -> Mapping[str, str]:
        """Of the arrays of the input, as far as they are known."""
        known: dict[str, str] = self.contents["checksums"]
        return known

    @property
    def _earlier(self) -> tuple[dict[str, Any], ...]:
        """The runs before this one, as recorded."""
        return self.past.manifest.attempts if self.past else ()

    def _note(self, state: PassState) -> None:
        """The pairs that this rank has attended to in this pass since the run began."""
        start = self.start(state.stage)
        self._pairs[state.stage] = state.visits.pairs - (start.pairs if start else 0)

    def _save(self, state: PassState) -> str | None:
        """Write a generation. Collective.

        Returns
        -------
        str or None
            The same on all ranks: what failed. Then nothing is left of it.
        """
        self._note(state)
        number, self.number = self.number, self.number + 1
        written, failure = self._write(number, state)
        told = self.ring.exchange((written, failure, dict(self._pairs)), SAVING, patience=LONG_WORK)
        failures = [f"{self.ring.called(rank)}: {theirs[1]}" for rank, theirs in enumerate(told) if theirs[1]]
        if self.ring.rank == 0 and not failures:
            failures = self._publish(number, state, [file for file, _, _ in told if file], _added(told))
        outcome: str = self.ring.exchange("; ".join(failures), SAVING, patience=LONG_WORK)[0]
        if outcome:
            if self.ring.rank == 0:
                self.checkpoints.discard(number)
            return outcome
        self.newest = number
        return None

    def _write(self, number: int, state: PassState) -> tuple[RankFile | None, str]:
        try:
            name, size, digest = write_rank_state(
                self.checkpoints.rank_path(number, self.ring.rank), state.arrays, tables_of(state)
            )
        except StorageError as error:
            return None, str(error)
        absorbed = state.visits.absorbed(state.resident)
        ranges = {name: tuple((r.start, r.stop, r.step) for r in array.ranges) for name, array in state.arrays.items()}
        return (
            RankFile(
                name=name,
                bytes=size,
                digest=digest,
                pairs=state.visits.pairs,
                absorbed=None if absorbed is None else tuple(map(tuple, absorbed.tolist())),
                ranges=ranges,
            ),
            "",
        )

    def _publish(self, number: int, state: PassState, files: list[RankFile], pairs: dict[str, int]) -> list[str]:
        """On rank 0: make the generation exist. Returns what failed."""
        attempts = [*self._earlier, self.attempt | {"pairs": pairs}]
        progress = {
            "stage": state.stage,
            "step": state.step,
            "pairs": _added([(None, "", attempt["pairs"]) for attempt in attempts]),
            "input": self.contents,
        }
        start = self.start(state.stage)
        manifest = Manifest(
            generation=number,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            ringmpi=__version__,
            identity=self.identity,
            layout=self.layout,
            progress=progress,
            attempts=tuple(attempts),
            absorbed=_rows(start.absorbed if start else None),
            files=tuple(files),
        )
        try:
            self.checkpoints.publish(manifest, keep=self.newest)
        except StorageError as error:
            return [str(error)]
        log.info("saved generation %d in %s", number, self.checkpoints.directory)
        return []


def _rows(absorbed: Slices | None) -> tuple[Any, ...]:
    return () if absorbed is None else tuple(map(tuple, absorbed.tolist()))


def _added(told: Any) -> dict[str, int]:
    """Pairs by stage, over all ranks or attempts."""
    total: dict[str, int] = {}
    for _, _, pairs in told:
        for stage, count in pairs.items():
            total[stage] = total.get(stage, 0) + count
    return total
