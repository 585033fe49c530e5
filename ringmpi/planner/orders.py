"""One pass in several orders of its ranks on a machine: as they were launched, as they are placed, and by chance."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from ringmpi.core.problem import Problem
from ringmpi.planner.balance import PassTables
from ringmpi.planner.network import GatherHops, Network, RingHops
from ringmpi.planner.roofline import Times, flops_a_pair, pass_times
from ringmpi.topology.cost import Cost
from ringmpi.topology.ring_choice import choose_ring

SEED = 1  # the random order is the same each time


@dataclass(frozen=True)
class Forecast:
    """A pass in one order.

    Attributes
    ----------
    ranks : tuple of int
        Ring position to launch rank.
    cost : Cost
        Of the ring, as `ringmpi topology place` has it.
    bandwidth : float
        Bytes per second between the slowest neighbours, where all ranks send as much.
    times : Times
    at_work : float
        Share of the ranks' time that they spend in kernels.
    """

    ranks: tuple[int, ...]
    cost: Cost
    bandwidth: float
    times: Times
    at_work: float


def ring_orders(network: Network) -> dict[str, tuple[int, ...]]:
    """Ring position to launch rank, by the name of the order; placed is what a run chooses."""
    launch = tuple(range(len(network.launch)))
    hosts = [network.routes.hosts[host] for host in network.launch]
    shuffled = list(launch)
    Random(SEED).shuffle(shuffled)
    return {"launch": launch, "placed": choose_ring("", network.graph, hosts).order, "random": tuple(shuffled)}


def forecast(problem: Problem, tables: PassTables, network: Network, ranks: tuple[int, ...]) -> Forecast:
    """Time the pass of `problem`, counted in `tables`, in one order."""
    hops = hops_of(problem, tables, network, ranks)
    times = pass_times(problem, tables, network.rates, hops)
    work = tables.pairs.sum() / problem.size * flops_a_pair(problem.heads) / network.rates.flops
    return Forecast(ranks, hops.cost, hops.bandwidth, times, float(work / times.total) if times.total else 1.0)


def hops_of(problem: Problem, tables: PassTables, network: Network, ranks: tuple[int, ...]) -> RingHops | GatherHops:
    """What knows how long the hops of a schedule take in this order."""
    if problem.schedule.hand_to_hand:
        return RingHops(network, ranks, problem.schedule.directions)
    return GatherHops(network, ranks, tables.bytes_due)
