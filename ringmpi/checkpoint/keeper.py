"""Checkpoints of a run: saved while its passes go on, and where a new run begins."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ringmpi import __version__
from ringmpi.asking.question import Question
from ringmpi.checkpoint.pass_guard import PassGuard, Stop
from ringmpi.checkpoint.past import Past
from ringmpi.checkpoint.run_facts import RunFacts
from ringmpi.checkpoint.saved_state import PassState, tables_of
from ringmpi.checkpoint.state_keeper import Loop, Pass
from ringmpi.checkpoint.watch import Watch
from ringmpi.comm.agreement import LONG_WORK, from_first, on_first, together
from ringmpi.comm.mpi import MPIRing
from ringmpi.core.slices import Slices
from ringmpi.errors import RingMpiError, StorageError
from ringmpi.passes.visits import BEGINNING, Start, VisitLog
from ringmpi.storage.attempts import Attempts
from ringmpi.storage.generations import Checkpoints
from ringmpi.storage.manifest import Manifest, RankFile
from ringmpi.storage.rank_state import write_rank_state

log = logging.getLogger("ringmpi")
SAVING = "saving the state"
GO_ON = "go on under mpirun or srun, on any number of ranks, with"  # a command


@dataclass
class Keeper:
    """A run that keeps its state: a StateKeeper.

    Attributes
    ----------
    facts : RunFacts
    past : Past or None
        Where it goes on.
    number : int
        Of the next generation.
    starts_over : bool
        What runs before this one have left is removed, once the input has been read: then nothing is refused any more.
    contents : dict
        Size and time of change of the input, and the checksums of its arrays.
    stopped : Stop or None
        The same on all ranks, once a pass has been driven.
    newest : int or None
        Number of the newest generation that is known to be good.
    """

    transport: MPIRing
    checkpoints: Checkpoints
    watch: Watch
    facts: RunFacts
    past: Past | None
    number: int
    starts_over: bool = False
    contents: dict[str, Any] = field(default_factory=dict)
    stopped: Stop | None = None
    newest: int | None = None
    _pairs: dict[str, int] = field(default_factory=dict)
    _starts: dict[str, Start | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """The generation that the run goes on from is the newest good one."""
        self.newest = self.past.generation.number if self.past else None

    def start(self, stage: str) -> Start | None:
        """Where a pass begins; None where it is over. Collective when it is asked for the first time."""
        if (past := self.past) is None:
            return BEGINNING
        if stage not in self._starts:
            self._starts[stage] = together(self.transport, "reading the checkpoint", lambda: past.start(stage))
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
        changed = any(before.get(key) != stamp for key, stamp in self.facts.stamps.items())
        unread = [name for name in question.arrays if name not in checksums] if self.past and changed else []
        contents = from_first(
            self.transport, "reading the input", lambda: {name: str(question.arrays[name].content()) for name in unread}
        )
        found = checksums | contents
        if self.past and (wrong := differing(known, found, touched=changed)):
            error = StorageError(
                f"input {question.q.path}: {' and '.join(wrong)} cannot be confirmed to match the checkpoint "
                f"with. Put the input back, or start over with --force."
            )
            error.on_all_ranks = True
            raise error
        self.contents = {**self.facts.stamps, "checksums": known | found}
        if self.starts_over:
            on_first(self.transport, "removing checkpoints", self._put_away)

    def _put_away(self) -> None:
        if numbers := [generation.number for generation in self.checkpoints.generations()]:
            log.info("starting over: removing generations %s in %s", sorted(numbers), self.checkpoints.directory)
        self.checkpoints.clear()

    def attempts(self, pairs: dict[str, int]) -> Attempts | None:
        """What the output says of all runs that came to it; `pairs`: those of this one, over all ranks, by stage."""
        return Attempts.of(self.facts.identity, [*self._earlier, self.facts.attempt | {"pairs": pairs}])

    def clear(self) -> None:
        """The output is in place: remove the generations. On rank 0."""
        try:
            self.checkpoints.clear()
        except StorageError as error:
            log.warning("%s", error)

    def stop(self, go_on: str) -> None:
        """Say why the run has stopped, and leave word for whoever starts it again. Collective.

        Parameters
        ----------
        go_on : str
            The command that goes on.

        Raises
        ------
        StorageError
            On all ranks: if the state could not be saved.
        """
        if why := self.stopped:
            on_first(self.transport, "stopping", lambda: self._leave_word(why, go_on))

    def _leave_word(self, why: Stop, go_on: str) -> None:
        words = signal.Signals(why.signal).name if why.signal else "a request (the file STOP)"
        try:
            if not why.signal:
                self.checkpoints.obey_stop()
            elif not why.failure:
                self.checkpoints.ask_requeue(f"stopped by {words}; {GO_ON}: {go_on}")
        except StorageError as error:
            log.warning("%s", error)
        if why.failure:
            older = (
                f"goes on from generation {self.newest}"
                if self.newest
                else "starts from the beginning: there is no older state"
            )
            raise StorageError(
                f"stopped by {words}, but the state could not be saved: {why.failure} Fix that; --resume then {older}."
            )
        log.info("stopped by %s at generation %d; go on with --resume", words, self.newest)

    def drive(self, one: Pass, loop: Loop, state: Callable[[], PassState], *, anywhere: bool) -> bool:
        """Run the loop of a pass, saving what `state` gives; whether it has come to its end. Collective."""

        def save() -> str | None:
            with one.timeline.saving():
                return self._save(state())

        steps = len(one.itinerary.steps)
        guard = PassGuard(self.transport, self.watch, save, steps=steps, anywhere=anywhere, after=one.after)
        self.transport.drive(loop(guard), one.timeline.where, guard.look)
        guard.finish()
        self.stopped = guard.stopped
        if self.stopped is None:
            self._note(one.stage, one.visits)
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

    def _note(self, stage: str, visits: VisitLog) -> None:
        """The pairs that this rank has attended to in this pass since the run began."""
        start = self.start(stage)
        self._pairs[stage] = visits.pairs - (start.pairs if start else 0)

    def _save(self, state: PassState) -> str | None:
        """Write a generation. Collective.

        Returns
        -------
        str or None
            The same on all ranks: what failed. Then nothing is left of it.
        """
        self._note(state.stage, state.visits)
        number, self.number = self.number, self.number + 1
        try:
            on_first(self.transport, SAVING, lambda: self.checkpoints.begin(number))
        except StorageError as error:
            return str(error)
        written, failure = self._write(number, state)
        told = self.transport.collect((written, failure, dict(self._pairs)), SAVING, patience=LONG_WORK)
        failures = [f"{self.transport.called(rank)}: {theirs[1]}" for rank, theirs in enumerate(told) if theirs[1]]
        if self.transport.rank == 0 and not failures:
            failures = self._publish(
                number, state, [file for file, _, _ in told if file], _added(pairs for _, _, pairs in told)
            )
        outcome: str = self.transport.exchange("; ".join(failures), SAVING, patience=LONG_WORK)[0]
        if outcome:
            if self.transport.rank == 0:
                self.checkpoints.discard(number)
            return outcome
        self.newest = number
        return None

    def _write(self, number: int, state: PassState) -> tuple[RankFile | None, str]:
        """The file of this rank, or what failed: the others are to learn of anything that a save may bring about."""
        path = self.checkpoints.rank_path(number, self.transport.rank)
        try:
            return _written(path, state), ""
        except RingMpiError as error:
            return None, str(error)
        except MemoryError as error:
            return None, f"cannot write {path}: too little memory is free ({error}). Use more ranks, or fewer per node."

    def _publish(self, number: int, state: PassState, files: list[RankFile], pairs: dict[str, int]) -> list[str]:
        """On rank 0: make the generation exist. Returns what failed."""
        attempts = [*self._earlier, self.facts.attempt | {"pairs": pairs}]
        progress = {
            "stage": state.stage,
            "step": state.step,
            "pairs": _added(attempt["pairs"] for attempt in attempts),
            "input": self.contents,
            "output": self.facts.output,
            "overwrites": self.facts.overwrites,
        }
        start = self.start(state.stage)
        manifest = Manifest(
            generation=number,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            ringmpi=__version__,
            identity=self.facts.identity,
            layout=self.facts.layout,
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


def _written(path: Path, state: PassState) -> RankFile:
    """Write the file of a rank."""
    absorbed = state.visits.absorbed(state.resident)
    name, size, digest = write_rank_state(path, state.arrays, tables_of(state))
    return RankFile(
        name=name,
        bytes=size,
        digest=digest,
        pairs=state.visits.pairs,
        absorbed=None if absorbed is None else _rows(absorbed),
        ranges={name: tuple((r.start, r.stop, r.step) for r in array.ranges) for name, array in state.arrays.items()},
    )


def differing(known: Mapping[str, str], found: Mapping[str, str], *, touched: bool) -> list[str]:
    """Names of arrays whose checksum is not that of before; unknown before: not known to be the same once touched."""
    return [name for name, now in found.items() if (known[name] != now if name in known else touched)]


def _rows(absorbed: Slices | None) -> tuple[Any, ...]:
    return () if absorbed is None else tuple(map(tuple, absorbed.tolist()))


def _added(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Pairs by stage, over all ranks or attempts."""
    total: dict[str, int] = {}
    for pairs in counts:
        for stage, count in pairs.items():
            total[stage] = total.get(stage, 0) + count
    return total
