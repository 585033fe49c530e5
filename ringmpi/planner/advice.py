"""What to change, in sentences: every rule looks at a plan and its neighbours, every figure is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ringmpi.core.sharding import SPARSE
from ringmpi.numbers import percent
from ringmpi.planner.balance import imbalance, rank_loads, resharded
from ringmpi.planner.plan import Plan, make_plan, ranks_that_fit

WASTE_WORTH_SAYING = 0.05
SHARDINGS = ("zigzag", "balanced", "contiguous")
RANKS_COMPARED = 256  # above it other shardings are not planned in full


def advise(plan: Plan, memory: float | None) -> list[str]:
    """All that the rules say, or that they say nothing. `memory`: bytes per rank for arrays, None if not said."""
    found = [sentence for rule in RULES for sentence in rule(plan)]
    if memory is not None:
        found += _memory(plan, memory)
    return found or ["nothing to change: no rule of `ringmpi plan` finds anything better."]


def _nothing_to_do(plan: Plan) -> Iterator[str]:
    if plan.problem.pairs_asked == 0:
        yield "the mask allows no pair: all output will be 0. Look at the mask and the lengths."


def _idle_ranks(plan: Plan) -> Iterator[str]:
    size, length = plan.problem.size, plan.problem.queries.length
    if length < size:
        yield f"{length:,} queries on {size:,} ranks: {size - length:,} ranks have none. Use at most {length:,} ranks."


def _imbalance(plan: Plan) -> Iterator[str]:
    if plan.wasted < WASTE_WORTH_SAYING:
        return
    problem = plan.problem
    name = problem.queries.name
    waste, best = min(
        (1 - 1 / imbalance(rank_loads(resharded(problem, other, problem.size))), other)
        for other in SHARDINGS
        if other != name
    )
    found = (
        f"{name} wastes {percent(plan.wasted)} here (the busiest rank does {plan.tables.imbalance:.2f} times the mean)"
    )
    if waste < plan.wasted / 2:
        yield f"{found}: use {best}, which wastes {percent(round(waste, 3))}."
    else:
        yield f"{found}, and no other sharding does much better: fewer ranks would."


def _needless_travel(plan: Plan) -> Iterator[str]:
    problem = plan.problem
    if not 1 < problem.size <= RANKS_COMPARED or not plan.bytes_sent:
        return
    possible = problem.queries.length * problem.keys.length * problem.heads.query_slabs
    if problem.pairs_asked >= SPARSE * possible:
        return
    others = [make_plan(resharded(problem, name, problem.size)) for name in SHARDINGS if name != problem.queries.name]
    better = [other for other in others if other.wasted <= plan.wasted + WASTE_WORTH_SAYING]
    best = min(better, key=lambda other: other.bytes_sent, default=plan)
    if best.bytes_sent < plan.bytes_sent / 2:
        yield (
            f"{problem.queries.name} is a poor choice for {problem.mask}: it sends {plan.bytes_sent / 1e6:,.3g} MB, "
            f"{best.problem.queries.name} {best.bytes_sent / 1e6:,.3g} MB, since neighbours stay on one rank."
        )


def _exposed_hops(plan: Plan) -> Iterator[str]:
    critical, times = plan.critical_block_length, plan.times
    if critical is None or times is None or not times.exposed.any():
        return
    hidden_on = int(plan.problem.queries.length // critical) if critical < float("inf") else 0
    yield (
        f"hops are not hidden: {plan.queries_a_rank:,} queries per rank, {critical:,.0f} are needed. Up to "
        f"{percent(min(times.exposed.sum() / times.total, 1))} of the time is waiting. "
        + (
            f"At this length {hidden_on:,} ranks or fewer hide them."
            if hidden_on > 1
            else "Longer sequences hide them."
        )
    )


def _memory(plan: Plan, memory: float) -> Iterator[str]:
    if plan.peak <= memory:
        return
    problem = plan.problem
    enough = ranks_that_fit(problem, problem.queries.name, memory, plan.travel, on_gpus=plan.gpu is not None)
    found = f"this does not fit: {plan.peak / 1e9:.3g} GB of {memory / 1e9:.3g} GB per rank"
    if enough is not None:
        yield f"{found}; on {enough:,} ranks it does."
    elif problem.schedule.name == "all-gather":
        yield f"{found}, on any number of ranks: all-gather holds all keys on every rank. Use schedule = ring."
    else:
        yield f"{found}, nor on {plan.most_ranks:,} ranks."


RULES: tuple[Callable[[Plan], Iterator[str]], ...] = (
    _nothing_to_do,
    _idle_ranks,
    _imbalance,
    _needless_travel,
    _exposed_hops,
)
