"""`ringmpi plan --topology`: its options, the machine that they describe, and what a plan says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ringmpi.planner.machines import Rates
    from ringmpi.planner.network import Network
    from ringmpi.planner.plan import Plan
    from ringmpi.planner.simgrid import Comparison

LATENCY = 1e-6
STEPS = 16
ONLY_WITH = ("hosts", "ranks_per_host", "latency", "simulate", "simulate_steps")

_OPTIONS = (
    click.option(
        "--topology",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="FILE",
        help="Predict the times of hops on this machine, in several orders of the ranks. May be given more than once.",
    ),
    click.option("--hosts", metavar="HOSTLIST", help="With --topology: hosts in launch order; default: all."),
    click.option("--ranks-per-host", type=click.IntRange(min=1), metavar="N", help="With --topology; default: 1."),
    click.option(
        "--latency",
        type=click.FloatRange(min=0, max=1),
        metavar="SECONDS",
        help=f"With --topology: what each link adds; default: {LATENCY:g}.",
    ),
    click.option(
        "--simulate",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="With --topology: write a trace into DIR and replay it with SimGrid; of the last of --ranks.",
    ),
    click.option(
        "--simulate-steps",
        type=click.IntRange(min=1),
        metavar="N",
        help=f"With --simulate: only the first N ring steps; default: {STEPS}.",
    ),
)


def topology_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


class Site:
    """The machine that the options describe, before it is known how many ranks there are and what they reach."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        from ringmpi.cli.topology import hosts_of
        from ringmpi.topology.reading import read

        self._graph = read(options["topology"], None)
        self.hosts = hosts_of(self._graph, options["hosts"], options["ranks_per_host"] or 1)
        self._latency = LATENCY if options["latency"] is None else options["latency"]

    def network(self, size: int, rates: Rates | None) -> Network:
        """Under the first `size` ranks."""
        from ringmpi.errors import ConfigError
        from ringmpi.planner.network import Network

        if rates is None:
            raise ConfigError("--topology is for times: give --machine too, or --flops and --bandwidth, or --measure.")
        if size > len(self.hosts):
            raise ConfigError(
                f"{size:,} ranks, but room for {len(self.hosts):,} on these hosts. Give fewer --ranks, more --hosts "
                f"or more --ranks-per-host."
            )
        return Network(self._graph, self.hosts[:size], rates, self._latency)


def site_of(options: Mapping[str, Any]) -> Site | None:
    """The machine, if one is given; options that need one are refused without."""
    from ringmpi.errors import ConfigError

    if options["topology"]:
        if options["simulate_steps"] and not options["simulate"]:
            raise ConfigError("--simulate-steps has no effect without --simulate DIR.")
        return Site(options)
    given = [name for name in ONLY_WITH if options[name] is not None]
    if given:
        raise ConfigError(f"--{given[0].replace('_', '-')} has no effect without --topology FILE: give both.")
    return None


def simulated(plan: Plan, options: Mapping[str, Any]) -> dict[str, Comparison]:
    """What SimGrid says of the first steps of a plan, by order."""
    from ringmpi.planner.replay import first_steps
    from ringmpi.planner.simgrid import compare

    if plan.network is None or options["simulate"] is None:
        return {}
    tables = first_steps(plan.tables, options["simulate_steps"] or STEPS)
    orders = {name: forecast.ranks for name, forecast in plan.forecasts.items()}
    return compare(options["simulate"], plan.problem, tables, plan.network, orders)


def topology_as_dict(plan: Plan, comparisons: Mapping[str, Comparison]) -> dict[str, Any] | None:
    """The orders, JSON-able; None without a topology."""
    if plan.network is None:
        return None
    return {
        "latency": plan.network.latency,
        "fastest_cable": plan.network.fastest,
        "orders": {
            name: {
                "congestion": forecast.cost.congestion,
                "dilation": forecast.cost.dilation,
                "hops": forecast.cost.hops,
                "bandwidth": forecast.bandwidth,
                "seconds": forecast.times.total,
                "exposed_seconds": float(forecast.times.exposed.sum()),
                "at_work": forecast.at_work,
                "launch_ranks": forecast.ranks,
                "simulation": vars(comparisons[name]) if name in comparisons else None,
            }
            for name, forecast in plan.forecasts.items()
        },
    }
