"""The best ring of few hosts, found by trying all of them that may be better."""

from __future__ import annotations

from collections import Counter

from ringmpi.topology.cost import NOTHING, Cost
from ringmpi.topology.routes import Routes

FEW_HOSTS = 10
MOST_STEPS = 40_000  # hosts added to paths; all rings of eight hosts take 13,700 at most


def best_ring(routes: Routes, ring: list[int], cost: Cost, bound: Cost) -> tuple[list[int], Cost, bool]:
    """The best ring over all hosts of `routes`, its cost, and whether every other one is known to be no better.

    Parameters
    ----------
    routes : Routes
    ring, cost
        The best ring so far.
    bound : Cost
        What no ring can do without: the search ends when a ring costs no more.
    """
    search = _Search(routes, ring, cost, bound)
    search.extend(NOTHING)
    return search.ring, search.cost, search.steps >= 0


class _Search:
    """Branch and bound over paths that begin at host 0."""

    def __init__(self, routes: Routes, ring: list[int], cost: Cost, bound: Cost) -> None:
        self.ring, self.cost, self.steps = ring, cost, MOST_STEPS
        every = range(len(ring))
        self._bound = bound
        self._ways = [[routes.links(a, b) for b in every] for a in every]
        self._slowness = routes.slowness
        lengths = [[len(way) for way in ways] for ways in self._ways]
        self._nearest_first = [sorted(every, key=row.__getitem__) for row in lengths]
        self._shortest = [min((len(way) for way in ways if way), default=0) for ways in self._ways]
        self._loads: Counter[int] = Counter()
        self._path = [0]
        self._left = set(every) - {0}

    def extend(self, spent: Cost) -> None:
        """Try every host that is left after the path; back to host 0 when none is."""
        here = self._path[-1]
        for host in [each for each in self._nearest_first[here] if each in self._left] or [0]:
            self.steps -= 1
            if self.steps < 0 or self.cost <= self._bound:
                return
            way = self._ways[here][host]
            self._loads.update(way)
            congestion = max([spent.congestion, *(self._loads[link] * self._slowness[link] for link in way)])
            now = Cost(congestion, max(spent.dilation, len(way)), spent.hops + len(way))
            if self._least(now) < self.cost:
                self._go_on(host, now)
            self._loads.subtract(way)

    def _least(self, now: Cost) -> Cost:
        """What a ring costs at least that begins with a path: each host that is left still sends a block."""
        ahead = sum(self._shortest[host] for host in self._left)
        return Cost(
            max(now.congestion, self._bound.congestion), max(now.dilation, self._bound.dilation), now.hops + ahead
        )

    def _go_on(self, host: int, now: Cost) -> None:
        if not self._left:
            self.ring, self.cost = list(self._path), now
            return
        self._path.append(host)
        self._left.remove(host)
        self.extend(now)
        self._left.add(host)
        self._path.pop()
