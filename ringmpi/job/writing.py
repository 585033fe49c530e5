"""What a run leaves behind: a shard file per rank, then one output file with the account of the run."""

from __future__ import annotations

import logging
import math
import platform
import resource
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

from ringmpi import __version__
from ringmpi.asking.question import Question, check_unchanged
from ringmpi.backends.base import Backend
from ringmpi.comm.agreement import LONG_WORK
from ringmpi.comm.deadline import deadline
from ringmpi.comm.session import Session
from ringmpi.config import RunConfig, resolved
from ringmpi.core.problem import Problem
from ringmpi.core.record import QUANTITIES
from ringmpi.core.stages import BACKWARD, FORWARD
from ringmpi.job.computing import Computed
from ringmpi.process.command import as_typed
from ringmpi.ring import Ring
from ringmpi.storage.attempts import AttemptsRecord
from ringmpi.storage.computed_by import ComputedBy
from ringmpi.storage.files import check_destination
from ringmpi.storage.layout import GRAD_KEY, GRAD_QUERY, GRAD_VALUE, LOG_SUM_EXP, OUTPUT
from ringmpi.storage.lock import only_run
from ringmpi.storage.merge import merge_bytes, merge_shards
from ringmpi.storage.parallel import check_parallel, complete_output, write_together
from ringmpi.storage.rank_state import StateArray
from ringmpi.storage.record_layout import RECORD, TOP_ROWS
from ringmpi.storage.records import (
    BackwardRecord,
    LateRecord,
    PairCounts,
    PassTimeline,
    PlacementRecord,
    Provenance,
    RunRecord,
    Timeline,
)
from ringmpi.storage.shards import remove_shards, shard_path, write_shard
from ringmpi.storage.virtual import link_shards, remove_parts
from ringmpi.topology.ring_choice import RingChoice

log = logging.getLogger("ringmpi")
PACKAGES = ("numpy", "h5py", "mpi4py")
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes of ru_maxrss


class RankReport(NamedTuple):
    """What a rank tells rank 0: where and with what it ran, its peak memory, the counters of each pass, if any."""

    node: str
    launch_rank: int
    peak_bytes: int
    counters: dict[str, Any]
    backward: dict[str, Any]
    travel: str
    map_pass: dict[str, Any]
    backend: str
    arithmetic: str
    threads: int
    node_cores: int


def claim_output(config: RunConfig, question: Question, overwrites: bool, held: ExitStack) -> None:
    """Refuse what could not be written in the end; hold the output for this run, and remove shard files of others."""
    if config.output.writer == "parallel":
        check_parallel()
    once = config.output.layout == "virtual" or config.output.writer == "parallel"  # no shard files beside a merged one
    needed = merge_bytes(question.shapes, question.problem.dtype, copies=1 if once else 2)
    needed += sum(math.prod(shape) * dtype.itemsize for shape, dtype in question.late_shapes.values())
    check_destination(config.output.file, force=overwrites, bytes_needed=needed)
    held.enter_context(only_run(config.output.file))
    remove_shards(config.output.file)


def write_rank(config: RunConfig, question: Question, ring: Ring, computed: Computed) -> None:
    """Write the shard file of this rank, or its rows of the output. Collective where all ranks write together."""
    problem = question.problem
    with computed.timeline.writing():
        if config.output.writer == "parallel":
            with deadline(LONG_WORK * ring.transport.timeout, "writing the output with all ranks"):
                rows = _rows(problem.queries.shards[ring.rank], computed)
                write_together(config.output.file, ring.transport.cart, rows, shapes=question.shapes)
            return
        write_shard(
            shard_path(config.output.file, ring.rank),
            ranges=problem.queries.shards[ring.rank],
            output=computed.rows.output,
            log_sum_exp=computed.rows.log_sum_exp,
            record=_record_arrays(computed),
            gradients=computed.backward.gradients if computed.backward else None,
        )


def _rows(ranges: Sequence[range], computed: Computed) -> dict[str, StateArray]:
    """All arrays of this rank, as they are called in the output."""
    of_queries = {OUTPUT: computed.rows.output, LOG_SUM_EXP: computed.rows.log_sum_exp, **_record_arrays(computed)}
    arrays = {name: StateArray(ranges, array) for name, array in of_queries.items()}
    if computed.backward is not None:
        gradients = computed.backward.gradients
        arrays[GRAD_QUERY] = StateArray(ranges, gradients.query)
        arrays[GRAD_KEY] = StateArray(gradients.key_ranges, gradients.key)
        arrays[GRAD_VALUE] = StateArray(gradients.key_ranges, gradients.value)
    return arrays


def _record_arrays(computed: Computed) -> dict[str, Any]:
    """What the rows of this rank say of their weights, as it is called in the output."""
    record = computed.rows.record
    return {} if record is None else {f"{RECORD}/{name}": getattr(record, name) for name in QUANTITIES}


def rank_report(session: Session, ring: Ring, backend: Backend, computed: Computed) -> RankReport:
    """Of this rank."""
    peak, backward = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT, computed.backward
    return RankReport(
        session.node,
        session.comm.rank,
        peak,
        computed.timeline.counters(),
        backward.timeline.counters() if backward else {},
        backward.travel if backward else "",
        computed.late.timeline.counters() if computed.late and computed.late.timeline else {},
        backend.name,
        backend.arithmetic,
        ring.threads,
        ring.transport.node_cores,
    )


def run_record(
    session: Session,
    config: RunConfig,
    problem: Problem,
    reports: list[RankReport],
    started: datetime,
    identity: dict[str, str | int],
) -> RunRecord:
    """What all ranks have reported, put together."""
    peaks = np.array([report.peak_bytes for report in reports], np.int64)
    timeline = Timeline(**_stacked([report.counters for report in reports]), peak_memory_bytes=peaks)
    return RunRecord(
        provenance=Provenance(
            versions=_versions(session),
            hosts=tuple(report.node for report in reports),
            ring_order=tuple(report.launch_rank for report in reports),
            configuration=resolved(config),
            command_line=as_typed(sys.argv),
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
        backward=_backward_record(problem, reports) if config.backward else None,
        first_keys=None if problem.record is None else problem.record.sinks,
        computed_by=_computed_by(problem, reports),
    )


def _computed_by(problem: Problem, reports: list[RankReport]) -> ComputedBy:
    """What was decided where the configuration says "auto", or nothing."""
    heads = {
        name: getattr(problem.heads, name) for name in ("batch", "query_heads", "key_heads", "head_dim", "value_dim")
    }
    lengths = {"query_length": problem.queries.length, "key_length": problem.keys.length}
    return ComputedBy(
        backend=tuple(report.backend for report in reports),
        arithmetic=tuple(report.arithmetic for report in reports),
        threads=tuple(report.threads for report in reports),
        node_cores=tuple(report.node_cores for report in reports),
        schedule=problem.schedule.name,
        sharding={"queries": problem.queries.name, "keys": problem.keys.name},
        problem={**heads, **lengths, "mask": str(problem.mask), "scale": problem.scoring.scale},
    )


def with_attempts(account: RunRecord, attempts_with: Callable[[dict[str, int]], AttemptsRecord | None]) -> RunRecord:
    """The account of a run with those before it, whose pairs count too.

    attempts_with : function (pairs of this run by stage) -> AttemptsRecord or None
    """
    pairs, backward = {FORWARD: account.counts.pairs_attended}, account.backward
    if backward is not None:
        pairs[BACKWARD] = backward.pairs_attended
    account = replace(account, attempts=attempts_with(pairs))
    before, before_backward = account.earlier_pairs
    if backward is not None:
        backward = replace(backward, pairs_attended=backward.pairs_attended + before_backward)
    counts = replace(account.counts, pairs_attended=account.counts.pairs_attended + before)
    return replace(account, counts=counts, backward=backward)


def placement_record(choice: RingChoice | None) -> PlacementRecord | None:
    """What the ring follows from, where that is more than the order of the launcher."""
    if choice is None:
        return None
    return PlacementRecord(
        source=choice.source,
        cost=asdict(choice.cost),
        launch_cost=asdict(choice.launch_cost),
        lower_bound=asdict(choice.lower_bound),
        proved_optimal=choice.proved_optimal,
        unplaced=choice.unplaced,
    )


def with_late_record(
    account: RunRecord, question: Question, computed: Computed, reports: list[RankReport]
) -> RunRecord:
    """The account of a run with what was recorded after its forward pass. Called on rank 0, which has the arrays."""
    if computed.late is None or question.late is None:
        return account
    has_batch = len(question.shapes[OUTPUT]) == 4
    arrays = {
        name: array if has_batch or name == TOP_ROWS else array[0] for name, array in computed.late.arrays.items()
    }
    if not question.has_map_pass:
        return replace(account, late=LateRecord(None, arrays=arrays))
    timeline = _pass_timeline([report.map_pass for report in reports])
    attended = int(timeline.pairs_attended.sum())
    asked, block = question.problem.pairs_asked, question.late.map_block or 0
    return replace(account, late=LateRecord(timeline, asked, attended, arrays, block, question.k.length))


def _pass_timeline(ranks: list[dict[str, Any]]) -> PassTimeline:
    counters = _stacked(ranks)
    return PassTimeline(**{name: counters[name] for name in PassTimeline.__dataclass_fields__})


def _backward_record(problem: Problem, reports: list[RankReport]) -> BackwardRecord:
    timeline = _pass_timeline([report.backward for report in reports])
    asked = problem.pairs_asked * problem.schedule.backward_passes
    return BackwardRecord(timeline, asked, int(timeline.pairs_attended.sum()), reports[0].travel)


def _stacked(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """The counters of all ranks, rows by ring position."""
    return {name: np.stack([rows[name] for rows in ranks]) for name in ranks[0]}


def _versions(session: Session) -> dict[str, str]:
    packages = {name: version(name) for name in PACKAGES}
    return {"ringmpi": __version__, "Python": platform.python_version(), **packages, **session.versions()}


def finish_output(config: RunConfig, account: RunRecord, question: Question, overwrites: bool) -> None:
    """Make one output file of what all ranks have written. Called by one rank.

    Raises
    ------
    StorageError
        If it cannot be written, or the input is no longer the one that was read.
    """
    check_unchanged(config, account.provenance.input_identity)
    if config.output.writer == "parallel":
        shardings = {OUTPUT: question.problem.queries, GRAD_KEY: question.problem.keys}
        positions = {name: sharding.shards for name, sharding in shardings.items() if name in question.shapes}
        complete_output(config.output.file, question.shapes, positions, account)
    else:
        parts = [shard_path(config.output.file, rank) for rank in range(len(account.provenance.hosts))]
        finish = link_shards if config.output.layout == "virtual" else merge_shards
        finish(parts, config.output.file, shapes=question.shapes, account=account, force=overwrites)
    if config.output.layout == "merged":
        remove_parts(config.output.file)
    log.info("wrote %s", config.output.file)
