"""Which ring a job takes: the best one that is known, and never one that costs more than the order of the launcher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ringmpi.topology.building import Builder
from ringmpi.topology.cost import Cost
from ringmpi.topology.graph import Graph
from ringmpi.topology.placement import place


@dataclass(frozen=True)
class RingChoice:
    """The ring of a job.

    Attributes
    ----------
    source : str
        What it follows from, for people.
    order : tuple of int
        Position in the ring to launch rank. Position 0 is launch rank 0.
    hosts : int
        How many there are.
    cost, launch_cost, lower_bound : Cost
        Of this ring, of the order of the launcher, and what no ring can do without. Hosts in `unplaced` do not count.
    proved_optimal : bool
        Whether no ring is better.
    unplaced : tuple of str
        Hosts that the source does not know. In a ring that is not that of the launcher they follow one another.
    """

    source: str
    order: tuple[int, ...]
    hosts: int
    cost: Cost
    launch_cost: Cost
    lower_bound: Cost
    proved_optimal: bool
    unplaced: tuple[str, ...] = ()

    @property
    def moved(self) -> bool:
        """Whether some rank does not sit where the launcher has put it."""
        return self.order != tuple(range(len(self.order)))

    def sentence(self) -> str:
        """What was chosen and why, on one line."""
        if not self.moved:
            return f"{self.source}: launch order kept over {self._hosts_in_words()}; {self._bounds()}"
        costs = zip(_numbers(self.launch_cost), _numbers(self.cost), strict=True)
        congestion, dilation, hops = (f"{launch} -> {here}" for launch, here in costs)
        return (
            f"{self.source}: ring placed over {self._hosts_in_words()}, launch order -> ring: congestion {congestion}, "
            f"longest edge {dilation} links, all edges {hops} links; {self._bounds()}"
        )

    def _hosts_in_words(self) -> str:
        return f"{self.hosts} host{'' if self.hosts == 1 else 's'}"

    def _bounds(self) -> str:
        if self.proved_optimal:
            return "no ring is better"
        if self.cost.hops == 0:
            return "no link is known"
        congestion, dilation, hops = _numbers(self.lower_bound)
        return f"no ring does with less than congestion {congestion}, {dilation} and {hops} links"


def _numbers(cost: Cost) -> tuple[str, str, str]:
    return f"{cost.congestion:.3g}", str(cost.dilation), str(cost.hops)


def choose_ring(source: str, graph: Graph, hosts: Sequence[str]) -> RingChoice:
    """The ring over ranks on `hosts`, in launch order, on the machine `graph`.

    It is placed if that costs less than the order of the launcher, or if `graph` is an order and tells no costs.
    """
    found = place(graph, hosts)
    better = found.cost < found.launch_cost or graph.kind == "order"
    cost = min(found.cost, found.launch_cost)
    return RingChoice(
        source,
        order=_from_first(found.order) if better else tuple(range(len(hosts))),
        hosts=len(set(hosts)),
        cost=cost,
        launch_cost=found.launch_cost,
        lower_bound=found.lower_bound,
        proved_optimal=found.proved_optimal and cost <= found.cost,
        unplaced=found.unplaced,
    )


def choose_together(hosts: Sequence[str]) -> RingChoice | None:
    """The ranks of each host together, hosts as the launcher has them, if the ring then leaves hosts less often.

    For hosts of which nothing is known: all count as equally far from one another.
    """
    star = Builder()
    for host in dict.fromkeys(hosts):
        star.under(star.host(f"host {host}", "host"), star.switch("network", "host"))
    choice = choose_ring("who shares a host", star.graph("tree"), [f"host {host}" for host in hosts])
    number = {host: place for place, host in enumerate(dict.fromkeys(hosts))}
    order = tuple(sorted(range(len(hosts)), key=lambda rank: number[hosts[rank]]))
    return replace(choice, order=order) if choice.moved else None


def _from_first(order: Sequence[int]) -> tuple[int, ...]:
    """The same ring, told from launch rank 0 on: it logs, writes and reports, in any ring."""
    start = order.index(0)
    return (*order[start:], *order[:start])
