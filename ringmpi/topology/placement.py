"""The best ring over the hosts of a job.

Laying a ring over a network is the travelling salesman's problem, but the networks of real machines are kind:
depth-first orders are optimal on trees, and boxes and tori have closed walks. What is left is searched, and held
against what no ring can do without.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from ringmpi.topology.bounds import lower_bound
from ringmpi.topology.candidates import candidate_rings
from ringmpi.topology.cities import MOST_HOSTS, cities_of
from ringmpi.topology.cost import NOTHING, Cost, ring_cost
from ringmpi.topology.depth_first import joining_tree
from ringmpi.topology.exhaustive import FEW_HOSTS, best_ring
from ringmpi.topology.graph import Graph
from ringmpi.topology.grid_routes import GridRoutes
from ringmpi.topology.job import Job, find_job
from ringmpi.topology.rails import along_rails
from ringmpi.topology.relief import relieved
from ringmpi.topology.routes import Routes
from ringmpi.topology.routing import routes_between

FEW_TO_RELIEVE = 24  # hosts


@dataclass(frozen=True)
class Placement:
    """A ring over the ranks of a job.

    Attributes
    ----------
    order : tuple of int
        Position in the ring to launch rank. Ranks of one host follow one another, in launch order; where hosts hang on
        several switches (rails), every other host is gone through backwards.
    hosts : tuple of str
        The hosts in ring order, each once, by the names that the job calls them.
    cost, launch_cost : Cost
        Of this ring and of the ring in launch order. Hosts in `unplaced` are left out of both.
    lower_bound : Cost
        What no ring can do without, field by field.
    proved_optimal : bool
        Whether no ring is better: the bound is met, or all rings have been seen.
    unplaced : tuple of str
        Hosts that the topology does not know, or knows no link of. They come last in the ring, in launch order.
    """

    order: tuple[int, ...]
    hosts: tuple[str, ...]
    cost: Cost
    launch_cost: Cost
    lower_bound: Cost
    proved_optimal: bool
    unplaced: tuple[str, ...]

    @property
    def gap(self) -> Cost:
        """How far the cost may be from the best, field by field."""
        cost, least = self.cost, self.lower_bound
        return Cost(cost.congestion - least.congestion, cost.dilation - least.dilation, cost.hops - least.hops)


@dataclass(frozen=True)
class _Ring:
    """Vertices in ring order, and what is known of the ring."""

    vertices: Sequence[str]
    cost: Cost = NOTHING
    launch_cost: Cost = NOTHING
    bound: Cost = NOTHING
    proved: bool = False


def place(graph: Graph, hosts: Sequence[str]) -> Placement:
    """The best ring over `hosts`, one name for each rank in launch order, on the machine `graph`.

    The same hosts in another order give the same ring over hosts, unless the hosts in the order in which they are named
    first are a better one: the ring never costs more than that. Costs are compared by congestion, dilation, hops.
    """
    job, switches = find_job(graph, hosts), set(graph.switches)
    ring = _ordered(graph, job) if graph.kind == "order" or not job.launch else _placed(graph, job)
    ranks = job.ranks_of(ring.vertices)
    railed = all(len(graph.neighbours[vertex].keys() & switches) > 1 for vertex in ring.vertices)
    return Placement(
        order=tuple(along_rails(ranks) if railed else chain.from_iterable(ranks)),
        hosts=tuple(hosts[of_host[0]] for of_host in ranks),
        cost=ring.cost,
        launch_cost=ring.launch_cost,
        lower_bound=ring.bound,
        proved_optimal=ring.proved,
        unplaced=job.unplaced,
    )


def _ordered(graph: Graph, job: Job) -> _Ring:
    """The hosts as their file orders them; nothing is known of any link."""
    wanted = set(job.launch)
    return _Ring([host for host in graph.hosts if host in wanted])


def _placed(graph: Graph, job: Job) -> _Ring:
    """The best ring that is found, or the hosts as they are first named, if that is better."""
    routes = routes_between(graph, job.launch)
    number = {host: place for place, host in enumerate(routes.hosts)}
    launch = [number[host] for host in job.launch]
    in_turn = list(dict.fromkeys(launch))
    tree = None if isinstance(routes, GridRoutes) else joining_tree(graph, routes.hosts)
    cities = cities_of(routes)
    bound = lower_bound(graph, cities, tree)
    ring, cost, proved = _best(routes, candidate_rings(cities, tree, bound), bound)
    launch_cost = ring_cost(routes, launch)
    in_turn_cost = launch_cost if launch == in_turn else ring_cost(routes, in_turn)
    if in_turn_cost < cost:
        ring, cost = in_turn, in_turn_cost
    return _Ring([routes.hosts[host] for host in ring], cost, launch_cost, bound, proved)


def _best(routes: Routes, candidates: Iterable[list[int]], bound: Cost) -> tuple[list[int], Cost, bool]:
    """The first of the cheapest rings, its cost, and whether no ring is cheaper.

    The first ring that meets the bound ends it. If none does, the best is relieved of congestion, all are if they are
    small, and if they are smaller still, all rings are tried.
    """
    seen: list[tuple[Cost, list[int]]] = []
    for ring in candidates:
        seen.append((ring_cost(routes, ring), ring))
        if seen[-1][0] <= bound:
            return _turned(routes, ring, bound), bound, True
    seen.sort(key=lambda each: each[0])
    size = len(routes.hosts)
    crowded = size <= MOST_HOSTS and seen[0][0].congestion > bound.congestion
    few = seen if size <= FEW_TO_RELIEVE else seen[:crowded]
    cost, ring = min([*(relieved(routes, ring, cost, bound) for cost, ring in few), seen[0]], key=lambda each: each[0])
    proved = cost <= bound
    if not proved and size <= FEW_HOSTS:
        ring, cost, proved = best_ring(routes, ring, cost, bound)
    return _turned(routes, ring, cost), cost, proved


def _turned(routes: Routes, ring: list[int], cost: Cost) -> list[int]:
    """The ring from host 0 on, in the direction in which low numbers come first, if that costs no more."""
    start = ring.index(0)
    ring = ring[start:] + ring[:start]
    back = ring[:1] + ring[:0:-1]
    return back if back < ring and ring_cost(routes, back) <= cost else ring
