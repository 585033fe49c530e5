"""One run: read, attend, write, check. The only module that knows all parts.

Every step is done by all ranks together: if it fails on one, all end with the same message and exit code.
"""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from ringmpi.analysis.verify import Certificate, verify_file
from ringmpi.asking.question import Question, question_of
from ringmpi.checkpoint.lifecycle import Again, RunResources, as_begun, begin, is_finished, remove_leftovers
from ringmpi.comm.agreement import LONG_WORK, on_first, together
from ringmpi.comm.deadline import TIMEOUT_SECONDS
from ringmpi.comm.session import Session
from ringmpi.comm.signals import ignore_requests
from ringmpi.config import RunConfig, load_config
from ringmpi.core.problem import Problem
from ringmpi.errors import CHECK_FAILED, STOPPED
from ringmpi.job.account import account_of, placement_account, rank_report, with_attempts, with_late_record
from ringmpi.job.computing import compute
from ringmpi.job.job import Job
from ringmpi.job.writing import claim_output, finish_output, write_rank
from ringmpi.process.command import program
from ringmpi.ring import Ring
from ringmpi.storage.account import Account
from ringmpi.storage.inputs import Inputs

log = logging.getLogger("ringmpi")
AFRESH = Again()
UNSAVED = "; with a table [checkpoint] in RUN.toml a run saves its state first"


@dataclass(frozen=True)
class Report:
    """What a finished run has to say; `certificate` is None where no rows were to be recomputed."""

    config: RunConfig
    problem: Problem
    account: Account
    array_bytes: int
    backend: str
    threads: int
    certificate: Certificate | None

    @property
    def exit_code(self) -> int:
        """0, or 1 where the certificate failed."""
        return 0 if self.certificate is None or self.certificate.passed else CHECK_FAILED


@dataclass(frozen=True)
class EarlyEnd:
    """What a run has to say that did not come to its end now: the output was there already, or it was stopped.

    Attributes
    ----------
    config : RunConfig
    exit_code : int
    why : str
        "nothing to do" or "stopped".
    certificate : Certificate or None
        Of an output that was there, where rows were to be recomputed.
    go_on : str
        The command that goes on with a run that was stopped; else empty.
    """

    config: RunConfig
    exit_code: int
    why: str
    certificate: Certificate | None = None
    go_on: str = ""


def run(
    config_path: Path,
    *,
    overrides: Sequence[str] = (),
    again: Again = AFRESH,
    timeout: float = TIMEOUT_SECONDS,
    quiet: bool = False,
) -> tuple[int, Report | EarlyEnd | None]:
    """Compute what a configuration describes, over all ranks of this MPI job. Collective.

    Parameters
    ----------
    config_path : path
        RUN.toml.
    overrides : sequence of str
        "table.key=value", used instead of what RUN.toml says.
    again : Again
        Go on from a checkpoint, or overwrite an output that exists and put checkpoints away.
    timeout : float
        Seconds that a rank waits for another; 0: forever.
    quiet : bool
        Log warnings only.

    Returns
    -------
    exit_code : int
        The same on all ranks. STOPPED: the state is saved, and the run is to be started again.
    report : Report, EarlyEnd or None
        On rank 0.

    Raises
    ------
    RingMpiError
        On all ranks alike. If one rank fails in a way that the others cannot know, it ends the job.
    """
    with Session() as session, RunResources() as held, ExitStack() as stack:
        _start_logging(session, quiet)
        started = datetime.now(UTC)
        ring, config = _placed_ring(session, lambda: _configuration(config_path, overrides, again, held), timeout)
        _start_logging(session, quiet)
        step = partial(together, ring.transport)
        inputs = step("opening the input", lambda: stack.enter_context(Inputs(config.input.file)))
        identity = step("opening the input", inputs.identity)
        question = step("checking the input", lambda: question_of(config, inputs, ranks=ring.size))
        again = as_begun(ring.transport, config, question, again)
        if is_finished(ring.transport, config, question, again):
            return _verified_again(ring, config, question)
        needs = {"reproducible": question.problem.reproducible, "records": question.problem.record is not None}
        backend = step("choosing a backend", lambda: ring.backend(config.backend.name, **needs))
        on_first(ring.transport, "checking the output", lambda: claim_output(config, question, again.overwrites, held))
        keeper = begin(ring, config, question, backend, again, held)
        job = Job(ring, question, backend, keeper, config.backward.travel if config.backward else None)
        computed = compute(job, stack.close)
        if computed is None:
            go_on = _command(config_path, overrides, timeout)
            keeper.stop(go_on)
            return STOPPED, EarlyEnd(config, STOPPED, "stopped", go_on=go_on) if ring.rank == 0 else None
        step("writing shards", lambda: write_rank(config, question, ring, computed), patience=LONG_WORK)
        reports = ring.transport.collect(rank_report(session, ring, backend, computed), "reporting")

        def conclude() -> Report:
            read = {**identity, **keeper.checksums, **computed.checksums}
            account = account_of(session, config, question.problem, reports, started, read)
            account = with_late_record(account, question, computed, reports)
            account = with_attempts(replace(account, placement=placement_account(ring.choice)), keeper.attempts)
            finish_output(config, account, question, again.overwrites)
            certificate = _certificate(config)
            keeper.clear()
            return Report(
                config, question.problem, account, computed.array_bytes, backend.name, ring.threads, certificate
            )

        report = on_first(ring.transport, "merging and verifying the output", conclude)
        return max(ring.transport.exchange(report.exit_code if report else 0, "ending")), report


def _verified_again(ring: Ring, config: RunConfig, question: Question) -> tuple[int, EarlyEnd | None]:
    """0, or 1 where the output that is there fails its certificate: not to say that all is well after it was not."""
    on_first(ring.transport, "looking at the output", lambda: remove_leftovers(config, question))
    log.info("%s already exists and is from this run: nothing to do", config.output.file)
    certificate = on_first(ring.transport, "verifying the output", lambda: _certificate(config))
    failed = certificate is not None and not certificate.passed
    if failed:
        log.warning("%s fails its certificate; see ringmpi verify %s", config.output.file, config.output.file)
    codes: list[int] = ring.transport.exchange(CHECK_FAILED if failed else 0, "ending")
    code = max(codes)
    return code, EarlyEnd(config, code, "nothing to do", certificate) if ring.rank == 0 else None


def _placed_ring(session: Session, load: Callable[[], RunConfig], timeout: float) -> tuple[Ring, RunConfig]:
    """The ring, each rank in its place, and the configuration, which says how places are found."""
    ring = Ring(session.comm, timeout=timeout)
    config = together(ring.transport, "reading the configuration", load)
    ring.place(config.ring.placement)
    session.who = ring.transport.called(ring.rank)
    session.if_interrupted = "" if config.checkpoint else UNSAVED
    return ring, config


def _configuration(path: Path, overrides: Sequence[str], again: Again, held: RunResources) -> RunConfig:
    config = load_config(path, overrides)
    again.check(config)
    if config.checkpoint is not None:
        held.catch_signals()
    else:
        ignore_requests()
    return config


def _command(path: Path, overrides: Sequence[str], timeout: float) -> str:
    """What goes on with a run that was stopped: where it had to wait longer for a rank, it has to again."""
    changed = [word for override in overrides for word in ("--set", override)]
    patience = [] if timeout == TIMEOUT_SECONDS else ["--timeout", f"{timeout:g}"]
    return f"{program()} {shlex.join(['run', '--resume', str(path), *changed, *patience])}"


def _start_logging(session: Session, quiet: bool) -> None:
    """Rank 0 tells what happens, the others only what is wrong."""
    handler = logging.StreamHandler(sys.stderr)
    who = "" if session.comm.rank == 0 else f"{session.who}: "
    handler.setFormatter(logging.Formatter(f"ringmpi: {who}%(message)s"))
    log.handlers[:] = [handler]
    log.setLevel(logging.WARNING if quiet or session.comm.rank else logging.INFO)


def _certificate(config: RunConfig) -> Certificate | None:
    rows = config.output.verify_rows
    return verify_file(Path(config.output.file), rows=rows) if rows else None
