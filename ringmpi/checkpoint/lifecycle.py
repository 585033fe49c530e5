"""How a run whose state is kept begins, stops and ends: all ranks together, the first one speaks to the file system."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from ringmpi.asking.question import Question
from ringmpi.backends.base import Backend
from ringmpi.checkpoint.keeper import Keeper
from ringmpi.checkpoint.past import CHECKING, Past, Present, kernels_of, newest_together, past_of, present
from ringmpi.checkpoint.run_facts import RunFacts
from ringmpi.checkpoint.state_keeper import StateKeeper, Uninterrupted
from ringmpi.checkpoint.watch import Watch
from ringmpi.comm.agreement import from_first, on_first, together
from ringmpi.comm.mpi import MPIRing
from ringmpi.comm.signals import Signals, caught_signals
from ringmpi.config import RunConfig
from ringmpi.errors import ConfigError, StorageError
from ringmpi.planner.checkpoint import Keeping, plan_checkpoint
from ringmpi.ring import Ring
from ringmpi.storage.files import free_bytes, storage_errors
from ringmpi.storage.generations import GENERATIONS, Checkpoints, Generation
from ringmpi.storage.inputs import file_identity
from ringmpi.storage.lock import only_run
from ringmpi.storage.manifest import MANIFEST, Manifest, differences
from ringmpi.storage.results import Results
from ringmpi.storage.shards import remove_shards
from ringmpi.storage.virtual import remove_parts
from ringmpi.storage.visibility import missing

log = logging.getLogger("ringmpi")
OPENING = "opening the checkpoints"


@dataclass(frozen=True)
class Again:
    """What to do with what a run before this one has left: go on (`resume`), or put it away (`force`).

    begun_with_force : what a run goes on from was begun with --force
    """

    resume: bool = False
    force: bool = False
    begun_with_force: bool = False

    @property
    def overwrites(self) -> bool:
        """Whether the output may be there already."""
        return self.force or self.begun_with_force

    def check(self, config: RunConfig) -> None:
        """ConfigError if there is nothing to go on from."""
        if self.resume and config.checkpoint is None:
            raise ConfigError(
                "--resume: this configuration has no table [checkpoint], so no state of a run is kept. Add one with "
                'directory = "checkpoints", or leave --resume out.'
            )


class RunResources(ExitStack):
    """What a run holds until it has ended: its locks, and the signals that ask it to stop."""

    def __init__(self) -> None:
        super().__init__()
        self.signals = Signals()

    def catch_signals(self) -> None:
        """Remember them from now on, instead of being ended by them."""
        self.signals = self.enter_context(caught_signals())


def begin(
    ring: Ring, config: RunConfig, question: Question, backend: Backend, again: Again, held: RunResources
) -> StateKeeper:
    """What keeps the state of this run, and knows where it begins. Collective.

    Parameters
    ----------
    held : RunResources
        Closed when the run has ended: until then no other run uses the directory.

    Raises
    ------
    StorageError
        On all ranks: if there is a checkpoint and it is not clear what to do with it, it belongs to another run, or
        none can be used.
    """
    transport, options = ring.transport, config.checkpoint
    if options is None:
        return Uninterrupted(transport)
    checkpoints = Checkpoints(options.directory)
    found, number = from_first(transport, OPENING, lambda: _open(checkpoints, again, held))
    on_first(transport, OPENING, lambda: _warn_of_space(checkpoints, question))
    kernels = transport.exchange(kernels_of(backend, question.problem), CHECKING)
    now = together(transport, CHECKING, lambda: present(config, question, kernels, ring.rank))
    past = _past(transport, found, now)
    if past is None and again.resume and ring.rank == 0:
        log.info("nothing to go on from in %s: starting from the beginning", options.directory)
    facts = RunFacts(
        identity=now.identity,
        layout=now.layout,
        attempt={
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "ranks": ring.size,
            "hosts": transport.exchange(transport.node, OPENING),
        },
        stamps=from_first(transport, OPENING, lambda: _stamps_of(config)),
        output=config.output.file,
        overwrites=again.overwrites,
    )
    watch = Watch(held.signals, every_seconds=options.every_seconds, asked=checkpoints.stop_requested)
    return Keeper(transport, checkpoints, watch, facts, past, number, starts_over=again.force)


def _open(checkpoints: Checkpoints, again: Again, held: RunResources) -> tuple[list[Generation], int]:
    """What there is to go on from, newest first, and the number of the next generation."""
    checkpoints.prepare()
    held.enter_context(checkpoints.hold())
    checkpoints.withdraw_requeue()  # whatever is refused from here on would be refused again
    found, number = checkpoints.generations(), checkpoints.next_number()
    if again.force:
        return [], number
    if found and found[0].unfinished:
        with storage_errors("read", found[0].folder):
            missing([found[0].folder / MANIFEST])  # perhaps only this node does not see it yet
        found = checkpoints.generations()
    there = [generation for generation in found if not generation.unfinished]
    if there and not again.resume:
        doubt = f" ({there[0].problem})" if there[0].problem else ""
        raise StorageError(
            f"{checkpoints.directory} holds generation {there[0].number} of a run that has not ended{doubt}. Go on "
            f"with --resume, or start over with --force."
        )
    return found, number


def _stamps_of(config: RunConfig) -> dict[str, int]:
    return {key: int(value) for key, value in file_identity(config.input.file).items() if key != "path"}


def _warn_of_space(checkpoints: Checkpoints, question: Question) -> None:
    """Say it now if a save will fail."""
    gradients = question.grad_output is not None
    needed = GENERATIONS * plan_checkpoint(question.problem, Keeping(), 1, gradients=gradients).most_bytes
    if (free := free_bytes(checkpoints.directory)) < needed:
        log.warning(
            "%s needs %s bytes for %d generations, and %s are free: saves will fail",
            checkpoints.directory,
            f"{needed:,}",
            GENERATIONS,
            f"{free:,}",
        )


def _past(transport: MPIRing, found: list[Generation], now: Present) -> Past | None:
    """The newest valid generation; None where none was ever finished. Collective."""
    newest, passed_over = newest_together(transport, found)
    for reason in passed_over if transport.rank == 0 else ():
        log.warning("%s", reason)
    if newest is None:
        together(transport, CHECKING, lambda: _check_nothing_is_lost(found, passed_over))
        return None
    past = together(transport, CHECKING, lambda: past_of(newest, now))
    together(transport, CHECKING, lambda: past.check(slice(transport.rank, None, transport.size)))
    done, asked = past.manifest.progress["pairs"], now.problem.pairs_asked
    log.info(
        "going on from generation %d of %d ranks, in the %s pass: %s",
        newest.number,
        len(past.manifest.files),
        past.stage,
        ", ".join(f"{pairs:,} of {asked:,} pairs {stage}" for stage, pairs in done.items()),
    )
    log.info(
        "%s",
        "the layout is the same: bit for bit as if it had not stopped"
        if past.same_layout
        else "the layout differs: computing the rest of the mask",
    )
    return past


def _check_nothing_is_lost(found: list[Generation], passed_over: list[str]) -> None:
    """StorageError where a run from the beginning would remove what can perhaps be mended."""
    if not all(generation.unfinished for generation in found):
        reasons = "; ".join(reason.rstrip(".") for reason in passed_over)
        raise StorageError(
            f"no generation in {found[0].folder.parent} can be used: {reasons}. Fix that, or start over with --force."
        )


def as_begun(transport: MPIRing, config: RunConfig, question: Question, again: Again) -> Again:
    """`again`, and whether the run that it goes on with was begun with --force. Collective."""
    if not again.resume:
        return again
    return replace(again, begun_with_force=from_first(transport, OPENING, lambda: _was_forced(config, question)))


def _was_forced(config: RunConfig, question: Question) -> bool:
    if config.checkpoint is None:
        return False
    manifests = [generation.manifest for generation in Checkpoints(config.checkpoint.directory).generations()]
    newest = next((manifest for manifest in manifests if manifest), None)
    return newest is not None and _is_own(newest, question, config) and bool(newest.progress.get("overwrites"))


def _is_own(manifest: Manifest, question: Question, config: RunConfig) -> bool:
    """Whether it is of this very run, and goes to the same file."""
    return (
        not differences(manifest.identity, question.identity())
        and manifest.progress.get("output") == config.output.file
    )


def is_finished(transport: MPIRing, config: RunConfig, question: Question, again: Again) -> bool:
    """Whether the output of this very run is there already, so that nothing is left to do. Collective.

    Raises
    ------
    StorageError
        On all ranks: if the output belongs to another run, with what differs.
    """
    if not again.resume or again.begun_with_force:
        return False
    return from_first(transport, "looking at the output", lambda: _is_finished(config, question))


def _is_finished(config: RunConfig, question: Question) -> bool:
    path = Path(config.output.file)
    if not path.exists():
        return False
    with Results(path) as results:
        account = results.account
    identity = account.attempts.identity if account.attempts else {}
    wrong = differences(identity, question.identity()) if identity else ["it was made without [checkpoint]"]
    read = account.provenance.input_identity
    stamps = file_identity(config.input.file)
    if any(read[key] != stamps[key] for key in ("size_bytes", "mtime_ns")):
        wrong += [f"input {name}" for name, found in question.checksums().items() if read.get(name) != found]
    if wrong:
        raise StorageError(
            f"output {path} exists and belongs to another run: {'; '.join(wrong)}. Choose another file, or start over "
            f"with --force and without --resume."
        )
    return True


def remove_leftovers(config: RunConfig, question: Question) -> None:
    """Remove what a run whose output is there had not the time to remove: shard files, parts, its own generations.

    Called by one rank.
    """
    path = Path(config.output.file)
    with Results(path) as results:
        parts = results.parts
    with only_run(path):
        remove_shards(path)
        remove_parts(path, kept=parts)
    if config.checkpoint is not None:
        _clear_own(Checkpoints(config.checkpoint.directory), question, config)


def _clear_own(checkpoints: Checkpoints, question: Question, config: RunConfig) -> None:
    """Remove what is left of a run that is over, and nothing of another one in the same directory."""
    try:
        if not checkpoints.generations():
            return
        with checkpoints.hold():
            checkpoints.withdraw_requeue()
            for number, _, manifest, _, unfinished in checkpoints.generations():
                if unfinished or (manifest and _is_own(manifest, question, config)):
                    checkpoints.discard(number)
    except StorageError as error:  # another run is in it, perhaps
        log.warning("%s", error)
