"""How a run whose state is kept begins, stops and ends: all ranks together, the first one speaks to the file system."""

from __future__ import annotations

import logging
import signal
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ringmpi.backends.base import Backend
from ringmpi.checkpoint.keeper import Keeper, Uninterrupted
from ringmpi.checkpoint.past import CHECKING, Past, Present, identity_of, newest_together, past_of, present
from ringmpi.checkpoint.watch import Watch
from ringmpi.comm.agreement import from_first, on_first, together
from ringmpi.comm.mpi import MPIRing
from ringmpi.comm.signals import caught_signals
from ringmpi.config import RunConfig
from ringmpi.config.options import CheckpointOptions
from ringmpi.errors import ConfigError, StorageError
from ringmpi.planner.checkpoint import Keeping, plan_checkpoint
from ringmpi.question import Question
from ringmpi.ring import Ring
from ringmpi.storage.files import free_bytes
from ringmpi.storage.generations import Checkpoints, Generation
from ringmpi.storage.inputs import file_identity
from ringmpi.storage.lock import only_run
from ringmpi.storage.manifest import differences
from ringmpi.storage.results import Results
from ringmpi.storage.shards import remove_shards
from ringmpi.storage.virtual import remove_parts

log = logging.getLogger("ringmpi")
OPENING = "opening the checkpoints"
GENERATIONS = 3  # on the disk at once


@dataclass(frozen=True)
class Again:
    """What to do with what a run before this one has left: go on (`resume`), or put it away (`force`)."""

    resume: bool = False
    force: bool = False

    def check(self, config: RunConfig) -> None:
        """ConfigError if there is nothing to go on from."""
        if self.resume and config.checkpoint is None:
            raise ConfigError(
                "--resume: this configuration has no table [checkpoint], so no state of a run is kept. Add one with "
                'directory = "checkpoints", or leave --resume out.'
            )


def begin(
    ring: Ring, config: RunConfig, question: Question, backend: Backend, again: Again, held: ExitStack
) -> Keeper | Uninterrupted:
    """What keeps the state of this run, and knows where it begins. Collective.

    Parameters
    ----------
    held : ExitStack
        Closed when the run has ended: until then no other run uses the directory, and signals are caught.

    Raises
    ------
    StorageError
        On all ranks: if there is a checkpoint and it is not clear what to do with it, or it is of another run.
    """
    transport, options = ring.transport, config.checkpoint
    if options is None:
        return Uninterrupted(transport)
    checkpoints = Checkpoints(options.directory)
    found, number = from_first(transport, OPENING, lambda: _open(checkpoints, again, held))
    on_first(transport, OPENING, lambda: _warn_of_space(checkpoints, question))
    now = together(transport, CHECKING, lambda: present(config, question, backend, ring.rank))
    past = _past(transport, found, now)
    if past is None and again.resume and ring.rank == 0:
        log.info("nothing to go on from in %s: starting from the beginning", options.directory)
    on_first(transport, OPENING, checkpoints.withdraw_requeue)
    return Keeper(
        transport,
        checkpoints,
        _watch(options, checkpoints, held),
        identity=now.identity,
        layout=now.layout,
        attempt={
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "ranks": ring.size,
            "hosts": transport.exchange(transport.node, OPENING),
        },
        past=past,
        number=number,
        stamps={key: int(value) for key, value in file_identity(config.input.file).items() if key != "path"},
    )


def _open(checkpoints: Checkpoints, again: Again, held: ExitStack) -> tuple[list[Generation], int]:
    """What there is, newest first, and the number of the next generation."""
    checkpoints.prepare()
    held.enter_context(checkpoints.hold())
    if again.force:
        checkpoints.clear()
    found = checkpoints.generations()
    if any(generation.manifest for generation in found) and not again.resume:
        raise StorageError(
            f"{checkpoints.directory} holds generation {found[0].number} of a run that has not ended. Go on with "
            f"--resume, or start over with --force."
        )
    return found, checkpoints.next_number()


def _warn_of_space(checkpoints: Checkpoints, question: Question) -> None:
    """Say it now if a save will fail. Two generations are kept, and a third is there while it is written."""
    gradients = question.grad_output is not None
    needed = GENERATIONS * plan_checkpoint(question.problem, Keeping(), 1, gradients=gradients).total_bytes
    if (free := free_bytes(checkpoints.directory)) < needed:
        log.warning(
            "%s needs %s bytes for %d generations, and %s are free: saves will fail",
            checkpoints.directory,
            f"{needed:,}",
            GENERATIONS,
            f"{free:,}",
        )


def _watch(options: CheckpointOptions, checkpoints: Checkpoints, held: ExitStack) -> Watch:
    signals = held.enter_context(caught_signals())
    return Watch(signals, every_seconds=options.every_seconds, asked=checkpoints.stop_requested)


def _past(transport: MPIRing, found: list[Generation], now: Present) -> Past | None:
    """The newest valid generation; None where there is none. Collective."""
    newest, passed_over = newest_together(transport, found)
    for reason in passed_over if transport.rank == 0 else ():
        log.warning("%s", reason)
    if newest is None:
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
        else "the layout is another: computing the rest of the mask",
    )
    return past


def is_finished(ring: MPIRing, config: RunConfig, question: Question, again: Again) -> bool:
    """Whether the output of this very run is there already, so that nothing is left to do. Collective.

    Raises
    ------
    StorageError
        On all ranks: if the output is of another run, with what differs.
    """
    return again.resume and from_first(ring, "looking at the output", lambda: _is_finished(config, question))


def _is_finished(config: RunConfig, question: Question) -> bool:
    path = Path(config.output.file)
    if not path.exists():
        return False
    with Results(path) as results:
        record = results.record
    identity = record.attempts.identity if record.attempts else {}
    wrong = differences(identity, identity_of(config, question)) if identity else ["it was made without [checkpoint]"]
    read = record.provenance.input_identity
    stamps = file_identity(config.input.file)
    if any(read[key] != stamps[key] for key in ("size_bytes", "mtime_ns")):
        wrong += [f"input {name}" for name, now in question.checksums().items() if read.get(name) != now]
    if wrong:
        raise StorageError(
            f"output {path} exists and is of another run: {'; '.join(wrong)}. Choose another file, or start over with "
            f"--force and without --resume."
        )
    with only_run(path):  # what it may not have had the time for
        remove_shards(path)
        if config.output.layout == "merged":
            remove_parts(path)
        if config.checkpoint is not None:
            Checkpoints(config.checkpoint.directory).clear()
    log.info("%s is there already, of this very run: nothing to do", path)
    return True


def stop(keeper: Keeper | Uninterrupted, config_path: Path) -> None:
    """Say why the run has stopped, and leave word for whoever starts it again. Collective.

    Raises
    ------
    StorageError
        On all ranks: if the state could not be saved.
    """
    why = keeper.stopped
    if why is None or isinstance(keeper, Uninterrupted):
        return
    words = signal.Signals(why.signal).name if why.signal else "a request (the file STOP)"

    def tell() -> None:
        if not why.signal:
            keeper.checkpoints.obey_stop()
        if why.failure:
            older = f"generation {keeper.newest} is there" if keeper.newest else "there is no older one"
            raise StorageError(f"stopped by {words}, but the state could not be saved: {why.failure} ({older})")
        if why.signal:
            keeper.checkpoints.ask_requeue(f"stopped by {words}; go on with: ringmpi run --resume {config_path}")
        log.info("stopped by %s at generation %d; go on with --resume", words, keeper.newest)

    on_first(keeper.ring, "stopping", tell)
