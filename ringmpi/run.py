"""One run: read, attend, write, check. The only module that knows all parts.

Every step is done by all ranks together: if it fails on one, all end with the same message and exit code.
"""

from __future__ import annotations

import logging
import platform
import resource
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ringmpi import __version__, progress
from ringmpi.analysis.verify import Certificate, verify_file
from ringmpi.backends import get_backend
from ringmpi.comm.agreement import on_first, together
from ringmpi.comm.deadline import deadline
from ringmpi.comm.session import Session
from ringmpi.config import RunConfig, load_config, resolved
from ringmpi.core.problem import Problem
from ringmpi.planner.memory import RankMemory, rank_memory
from ringmpi.question import Question, check_unchanged, question_of
from ringmpi.reading import read_inputs
from ringmpi.ring import TIMEOUT_SECONDS, Ring
from ringmpi.ring_pass import ForwardPass, agree_on_pass
from ringmpi.storage.files import check_destination
from ringmpi.storage.inputs import Inputs
from ringmpi.storage.lock import only_run
from ringmpi.storage.merge import merge_bytes, merge_shards
from ringmpi.storage.records import PairCounts, Provenance, RunRecord, Timeline
from ringmpi.storage.shards import remove_shards, shard_path, write_shard
from ringmpi.storage.virtual import link_shards, remove_parts

log = logging.getLogger("ringmpi")
PACKAGES = ("numpy", "h5py", "mpi4py")
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes of ru_maxrss


@dataclass(frozen=True)
class Report:
    """What a finished run has to say; `certificate` is None where no rows were to be recomputed."""

    config: RunConfig
    problem: Problem
    record: RunRecord
    memory: RankMemory
    backend: str
    threads: int
    certificate: Certificate | None

    @property
    def exit_code(self) -> int:
        """0, or 1 where the certificate failed."""
        return 0 if self.certificate is None or self.certificate.passed else 1


def run(
    config_path: Path,
    *,
    overrides: Sequence[str] = (),
    force: bool = False,
    timeout: float = TIMEOUT_SECONDS,
    quiet: bool = False,
) -> tuple[int, Report | None]:
    """Compute what a configuration describes, over all ranks of this MPI job. Collective.

    Parameters
    ----------
    config_path : path
        RUN.toml.
    overrides : sequence of str
        "table.key=value", used instead of what RUN.toml says.
    force : bool
        Overwrite an output that exists.
    timeout : float
        Seconds that a rank waits for another; 0: for ever.
    quiet : bool
        Log warnings only.

    Returns
    -------
    exit_code : int
        The same on all ranks.
    report : Report or None
        On rank 0.

    Raises
    ------
    RingMpiError
        On all ranks alike. If one rank fails in a way that the others cannot know, it ends the job.
    """
    with Session() as session, ExitStack() as held, ExitStack() as stack:
        _start_logging(session, quiet)
        with deadline(timeout, "making the ring"):
            ring = Ring(session.comm, timeout=timeout)
        step = partial(together, ring.transport)
        started = datetime.now(UTC)
        config = step("reading the configuration", lambda: load_config(config_path, overrides))
        inputs = step("opening the input", lambda: stack.enter_context(Inputs(config.input.file)))
        identity = step("opening the input", inputs.identity)
        question = step("checking the input", lambda: question_of(config, inputs, ranks=ring.size))
        problem = question.problem
        backend = step("choosing a backend", lambda: get_backend(config.backend.name, threads=ring.threads))
        on_first(ring.transport, "checking the output", lambda: _check_output(config, question, force, held))
        forward = agree_on_pass(ring.transport, problem, backend, donated=True)
        _announce(ring, problem, backend.name, forward)
        reading = read_inputs(ring.transport, question, forward)
        stack.close()
        if ring.rank == 0 and reading.warning():
            log.warning("%s", reading.warning())
        with progress.shown(forward.timeline, forward.pairs_asked):
            ring.transport.drive(forward.loop(ring.transport, reading.q, reading.finite), forward.timeline.where)
        identity |= reading.checksums()
        del reading
        step("writing shards", lambda: _write_shard(config, forward))
        reports = ring.transport.collect(_own_report(session, forward), "reporting")

        def conclude() -> Report:
            record = _record(session, config, problem, reports, started, identity)
            _merge(config, record, question, force)
            memory = rank_memory(problem, forward.itinerary)
            return Report(config, problem, record, memory, backend.name, ring.threads, _certificate(config))

        report = on_first(ring.transport, "merging and verifying the output", conclude)
        return max(ring.transport.exchange(report.exit_code if report else 0, "ending")), report


def _start_logging(session: Session, quiet: bool) -> None:
    """Rank 0 tells what happens, the others only what is wrong."""
    handler = logging.StreamHandler(sys.stderr)
    who = "" if session.comm.rank == 0 else f"rank {session.comm.rank} (node {session.node}): "
    handler.setFormatter(logging.Formatter(f"ringmpi: {who}%(message)s"))
    log.handlers[:] = [handler]
    log.setLevel(logging.WARNING if quiet or session.comm.rank else logging.INFO)


def _output_shape(question: Question) -> tuple[int, ...]:
    """With a batch axis where the input has one."""
    return (*question.q.shape[:-1], question.problem.heads.value_dim)


def _check_output(config: RunConfig, question: Question, force: bool, held: ExitStack) -> None:
    """Refuse what could not be written in the end; from here on the output is held for this run."""
    needed = merge_bytes(_output_shape(question), question.problem.dtype)
    needed //= 2 if config.output.layout == "virtual" else 1  # shard files only
    check_destination(config.output.file, force=force, bytes_needed=needed)
    held.enter_context(only_run(config.output.file))
    remove_shards(config.output.file)


def _announce(ring: Ring, problem: Problem, backend: str, forward: ForwardPass) -> None:
    """What is about to be computed, and what is odd about it, told by rank 0."""
    log.info(
        "%s of %s, %s keys, mask %s, sharding %s, schedule %s, backend %s, %.1f MiB of arrays on rank 0",
        counted(problem.size, "rank"),
        counted(ring.threads, "thread"),
        f"{problem.keys.length:,}",
        problem.mask,
        problem.queries.name,
        problem.schedule.name,
        backend,
        rank_memory(problem, forward.itinerary).peak / 2**20,
    )
    for doubt in problem.doubts() if ring.rank == 0 else ():
        log.warning("%s", doubt)


def counted(number: int, noun: str) -> str:
    """So many of them, in words."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _write_shard(config: RunConfig, forward: ForwardPass) -> None:
    output, log_sum_exp = forward.finish()
    ranges = forward.problem.queries.shards[forward.rank]
    path = shard_path(config.output.file, forward.rank)
    with forward.timeline.writing():
        write_shard(path, ranges=ranges, output=output, log_sum_exp=log_sum_exp)


def _own_report(session: Session, forward: ForwardPass) -> tuple[str, int, int, dict[str, Any]]:
    """Node, launch rank, peak memory and timeline of this rank."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT
    return session.node, session.comm.rank, peak, forward.timeline.rows()


def _record(
    session: Session,
    config: RunConfig,
    problem: Problem,
    reports: list[tuple[str, int, int, dict[str, Any]]],
    started: datetime,
    identity: dict[str, str | int],
) -> RunRecord:
    """What all ranks have reported, put together."""
    nodes, launch_ranks, peaks, timelines = zip(*reports, strict=True)
    timeline = Timeline(
        **{name: np.stack([rows[name] for rows in timelines]) for name in timelines[0]},
        peak_memory_bytes=np.array(peaks, np.int64),
    )
    return RunRecord(
        provenance=Provenance(
            versions=_versions(session),
            hosts=nodes,
            ring_order=launch_ranks,
            configuration=resolved(config),
            command_line=shlex.join(sys.argv),
            started=started.isoformat(timespec="seconds"),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            input_identity=identity,
        ),
        timeline=timeline,
        counts=PairCounts(
            pairs_asked=problem.pairs_asked,
            pairs_attended=int(timeline.pairs_attended.sum()),
            query_slabs=problem.heads.query_slabs,
        ),
    )


def _versions(session: Session) -> dict[str, str]:
    packages = {name: version(name) for name in PACKAGES}
    return {"ringmpi": __version__, "Python": platform.python_version(), **packages, **session.versions()}


def _merge(config: RunConfig, record: RunRecord, question: Question, force: bool) -> None:
    check_unchanged(config, record.provenance.input_identity)
    parts = [shard_path(config.output.file, rank) for rank in range(len(record.provenance.hosts))]
    finish = link_shards if config.output.layout == "virtual" else merge_shards
    finish(parts, config.output.file, shape=_output_shape(question), record=record, force=force)
    if config.output.layout == "merged":
        remove_parts(config.output.file)
    log.info("wrote %s", config.output.file)


def _certificate(config: RunConfig) -> Certificate | None:
    rows = config.output.verify_rows
    return verify_file(Path(config.output.file), rows=rows) if rows else None
