"""What `ringmpi plan` says of checkpoints: their bytes, the seconds to write them, and how often it pays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ringmpi.planner.checkpoint import CheckpointPlan
    from ringmpi.planner.plan import Plan

HOUR = 3600.0


def checkpoint_options(amount: click.ParamType[float]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """--disk and --node-mtbf, which take numbers of this type."""
    disk = click.option(
        "--disk",
        type=amount,
        metavar="B",
        help="Write rate of all ranks together, bytes per second: 2e9 (`ringmpi bench io` measures one process).",
    )
    mtbf = click.option(
        "--node-mtbf",
        type=amount,
        metavar="HOURS",
        help="Mean time between failures of one node: with --disk, how often a checkpoint pays.",
    )
    return lambda command: disk(mtbf(command))


def checkpoint_of(plan: Plan, options: dict[str, Any]) -> CheckpointPlan:
    """Of the run of a plan, on a machine as the options say: so many ranks a host, or one."""
    from ringmpi.planner.checkpoint import Keeping, plan_checkpoint

    hours, nodes = options["node_mtbf"], -(-plan.problem.size // (options["ranks_per_host"] or 1))
    keeping = Keeping(options["disk"], None if hours is None else hours * HOUR)
    return plan_checkpoint(plan.problem, keeping, nodes, gradients=plan.travel is not None)


def in_words(checkpoint: CheckpointPlan) -> str:
    """One line."""
    from ringmpi.cli.plan_columns import in_seconds, si

    words = f"{si(checkpoint.rank_bytes, 'B')} of the largest rank, {si(checkpoint.total_bytes, 'B')} in all"
    if checkpoint.seconds is None:
        return f"{words}; --disk says how long a save takes, --node-mtbf how often it pays"
    words += f", written in {in_seconds(checkpoint.seconds)}"
    if checkpoint.interval is None:
        return f"{words}; --node-mtbf says how often it pays"
    return f"{words}; pays every {checkpoint.interval:,.0f} s (Young, Daly): checkpoint.every_seconds"
