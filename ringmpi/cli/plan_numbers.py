"""A plan as a dictionary for machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ringmpi.cli.plan_topology import topology_as_dict
from ringmpi.config import RunConfig, resolved
from ringmpi.planner.advice import advise
from ringmpi.planner.backward import BackwardPlan, backward_bytes
from ringmpi.planner.balance import imbalance, key_loads
from ringmpi.planner.checkpoint import CheckpointPlan
from ringmpi.planner.memory import kv_cache, score_bytes
from ringmpi.planner.plan import Plan
from ringmpi.planner.simgrid import Comparison


@dataclass(frozen=True)
class Report:
    """What `ringmpi plan` has to say: one plan per rank count.

    memory : bytes a rank for arrays, None if not said
    checkpoint : of the last one
    simulated : what SimGrid says of the last one, by order
    """

    config: RunConfig
    plans: tuple[Plan, ...]
    memory: float | None
    layers: int
    checkpoint: CheckpointPlan
    simulated: Mapping[str, Comparison] = field(default_factory=dict)

    @property
    def not_planned(self) -> str:
        """What the run does beside what is planned, in words; empty where that is nothing."""
        record = self.config.record
        if record is None or not record.has_late_record:
            return ""
        if not self.has_map_pass:
            return "the top keys of chosen rows after the forward pass, which take little (docs/how-to/record.md)"
        problem = self.plans[-1].problem
        return (
            f"what is recorded after the forward pass: a map pass takes two thirds of its time, and queries and keys "
            f"stay in memory until it is over (docs/how-to/record.md). Keys stay on their rank in it: the busiest of "
            f"{problem.size} has {imbalance(key_loads(problem)):.3f} times the mean of its pairs"
        )

    @property
    def has_map_pass(self) -> bool:
        """Whether the run meets all pairs once more, for what it records."""
        record = self.config.record
        return record is not None and (record.map_block is not None or record.received)


def as_dict(report: Report) -> dict[str, Any]:
    """All plans, JSON-able."""
    first = report.plans[0].problem
    cache = kv_cache(first, report.layers)
    return {
        "configuration": resolved(report.config),
        "mask": str(first.mask),
        "dtype": str(first.dtype),
        "queries": first.queries.length,
        "keys": first.keys.length,
        "pairs_asked": first.pairs_asked,
        "score_bytes_a_head": score_bytes(first),
        "kv_cache_bytes_a_token": cache.token_bytes,
        "kv_cache_bytes": cache.total,
        "checkpoint": vars(report.checkpoint),
        "not_planned": report.not_planned or None,
        "plans": [_plan_as_dict(plan, report, plan is report.plans[-1]) for plan in report.plans],
    }


def _backward(plan: BackwardPlan) -> dict[str, Any]:
    """Both ways round."""
    ways = {
        way.travel: {
            "bytes_sent": int(way.bytes_sent.sum()),
            "bytes_sent_by_rank": way.bytes_sent.tolist(),
            "memory": {**vars(way.memory), "peak": way.memory.peak, "rank": way.memory_rank},
            "seconds": way.seconds,
            "gpu_memory": {**vars(way.gpu), "peak": way.gpu.peak},
        }
        for way in (plan.keys, plan.queries)
    }
    return {"travel": plan.chosen, **ways}


def _plan_as_dict(plan: Plan, report: Report, last: bool) -> dict[str, Any]:
    problem, tables, times = plan.problem, plan.tables, plan.times
    critical = plan.critical_block_length
    return {
        "ranks": problem.size,
        "sharding": problem.queries.name,
        "schedule": problem.schedule.name,
        "flops": plan.flops,
        "bytes_sent": plan.bytes_sent,
        "bytes_sent_by_rank": tables.bytes_sent.tolist(),
        "pairs_by_rank": (tables.pairs.sum(1) * problem.heads.query_slabs).tolist(),
        "pairs_by_step": (tables.pairs.sum(0) * problem.heads.query_slabs).tolist(),
        "bytes_due_by_step": tables.bytes_due.sum(0).tolist(),
        "pieces_due_by_step": tables.pieces_due.tolist(),
        "imbalance": tables.imbalance,
        "map_pass_imbalance": imbalance(key_loads(problem)) if report.has_map_pass else None,
        "density": tables.density,
        "memory": {**vars(plan.memory), "peak": plan.memory.peak, "rank": plan.memory_rank},
        "gpu_memory": None if plan.gpu is None else {**vars(plan.gpu), "peak": plan.gpu.peak},
        "backward_bytes_sent": backward_bytes(problem)[1],
        "backward": None if plan.backward is None else _backward(plan.backward),
        "rates": None if plan.rates is None else vars(plan.rates),
        "critical_block_length": None if critical is None or critical == float("inf") else critical,
        "queries_a_rank": plan.queries_a_rank,
        "seconds": None if times is None else times.total,
        "exposed_seconds_by_step": None if times is None else times.exposed.tolist(),
        "topology": topology_as_dict(plan, report.simulated if last else {}),
        "advice": advise(plan, report.memory),
    }
