"""The account of a run: what the ranks report about themselves, put together on rank 0 (storage/account.py)."""

from __future__ import annotations

import platform
import resource
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

from ringmpi import __version__
from ringmpi.asking.question import Question
from ringmpi.backends.base import Backend
from ringmpi.comm.session import Session
from ringmpi.config import RunConfig, resolved
from ringmpi.core.problem import Problem
from ringmpi.core.stages import BACKWARD, FORWARD
from ringmpi.job.computing import Computed
from ringmpi.process.command import as_typed
from ringmpi.ring import Ring
from ringmpi.storage.account import (
    Account,
    BackwardAccount,
    LateRecord,
    PairCounts,
    PassTimeline,
    PlacementAccount,
    Provenance,
    Timeline,
)
from ringmpi.storage.attempts import Attempts
from ringmpi.storage.computed_by import ComputedBy
from ringmpi.storage.layout import OUTPUT
from ringmpi.storage.record_layout import TOP_ROWS
from ringmpi.topology.ring_choice import RingChoice

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


def account_of(
    session: Session,
    config: RunConfig,
    problem: Problem,
    reports: list[RankReport],
    started: datetime,
    identity: dict[str, str | int],
) -> Account:
    """What all ranks have reported, put together."""
    peaks = np.array([report.peak_bytes for report in reports], np.int64)
    timeline = Timeline(**_stacked([report.counters for report in reports]), peak_memory_bytes=peaks)
    return Account(
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
        backward=_backward_account(problem, reports) if config.backward else None,
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


def with_attempts(account: Account, attempts_with: Callable[[dict[str, int]], Attempts | None]) -> Account:
    """The account of a run with those before it, whose pairs count too.

    attempts_with : function (pairs of this run by stage) -> Attempts or None
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


def placement_account(choice: RingChoice | None) -> PlacementAccount | None:
    """What the ring follows from, where that is more than the order of the launcher."""
    if choice is None:
        return None
    return PlacementAccount(
        source=choice.source,
        cost=asdict(choice.cost),
        launch_cost=asdict(choice.launch_cost),
        lower_bound=asdict(choice.lower_bound),
        proved_optimal=choice.proved_optimal,
        unplaced=choice.unplaced,
    )


def with_late_record(account: Account, question: Question, computed: Computed, reports: list[RankReport]) -> Account:
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


def _backward_account(problem: Problem, reports: list[RankReport]) -> BackwardAccount:
    timeline = _pass_timeline([report.backward for report in reports])
    asked = problem.pairs_asked * problem.schedule.backward_passes
    return BackwardAccount(timeline, asked, int(timeline.pairs_attended.sum()), reports[0].travel)


def _stacked(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """The counters of all ranks, rows by ring position."""
    return {name: np.stack([rows[name] for rows in ranks]) for name in ranks[0]}


def _versions(session: Session) -> dict[str, str]:
    packages = {name: version(name) for name in PACKAGES}
    return {"ringmpi": __version__, "Python": platform.python_version(), **packages, **session.versions()}
