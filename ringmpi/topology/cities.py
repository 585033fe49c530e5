"""What a search moves about: the hosts of a job or, in large jobs, groups of hosts that differ in nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ringmpi.topology.routes import Distances, Hosts, Routes
from ringmpi.topology.spanning_tree import ShortestTree, shortest_tree

MOST_HOSTS = 400  # above, hosts that differ in nothing are moved together
MOST_FOR_TREE = 3_000  # cities: a spanning tree takes time in the square
BLOCK = 500  # rows of a table that are made at once


@dataclass(frozen=True)
class Cities:
    """Hosts, or groups of hosts that stay together.

    Attributes
    ----------
    routes : Routes
    members : list of tuples of int
        City to its hosts.
    """

    routes: Routes
    members: list[tuple[int, ...]]

    def __len__(self) -> int:
        return len(self.members)

    @cached_property
    def _firsts(self) -> Hosts:
        return np.array([hosts[0] for hosts in self.members])

    def row(self, city: int) -> Distances:
        """Links from a city to all, [cities]."""
        distances: Distances = self.routes.distances(self._firsts[city : city + 1], self._firsts)[0]
        return distances

    @cached_property
    def table(self) -> Distances:
        """Links between any two cities, [cities, cities]; 0 on the diagonal."""
        table = np.empty((len(self), len(self)), np.int16)
        for start in range(0, len(self), BLOCK):
            table[start : start + BLOCK] = self.routes.distances(self._firsts[start : start + BLOCK], self._firsts)
        return table

    @cached_property
    def tree(self) -> ShortestTree:
        """A shortest spanning tree."""
        return shortest_tree(self.row, len(self))

    @property
    def tree_lengths(self) -> list[float]:
        """Of the edges of a shortest spanning tree of all hosts."""
        lengths = self.tree.lengths.copy()
        for hosts in self.members:
            if len(hosts) > 1:
                inside = self.routes.distances(np.array(hosts[:1]), np.array(hosts[1:2]))
                lengths += [float(inside[0, 0])] * (len(hosts) - 1)
        return lengths

    def shrink(self, ring: Sequence[int]) -> list[int]:
        """The cities in the order in which a ring of hosts first comes to them."""
        city_of = {host: city for city, hosts in enumerate(self.members) for host in hosts}
        return list(dict.fromkeys(city_of[host] for host in ring))

    def expand(self, ring: Sequence[int]) -> list[int]:
        """The hosts of a ring over cities."""
        return [host for city in ring for host in self.members[city]]


def cities_of(routes: Routes) -> Cities:
    """Every host of a small job; groups of equal hosts of a large one."""
    small = len(routes.hosts) <= MOST_HOSTS
    return Cities(routes, [(host,) for host in range(len(routes.hosts))] if small else routes.groups)
