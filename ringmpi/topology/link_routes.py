"""Shortest ways over links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ringmpi.topology.graph import Graph, Link
from ringmpi.topology.natural_order import natural_order
from ringmpi.topology.routes import Cables, Distances, Hosts

UNREACHED = 30_000  # more links than any way has


class LinkRoutes:
    """Every vertex forwards by destination alone, on a shortest way; hosts that hang on switches forward nothing.

    Destinations are dealt out over equal ways and over parallel cables in turn, in natural order of their names, as
    opensm's routing engines for fat trees and for shortest ways do. Up a tree with n ways from each leaf, only every
    n-th destination comes to a switch of the second level, where they are dealt out by their number over n, and so on:
    D-mod-k routing (Zahavi, Journal of Parallel and Distributed Computing 72, 2012). A way that no file tells, between
    two parts of the machine, counts as one link more than the longest way within a part, of cables as slow as the
    slowest.

    Parameters
    ----------
    graph : Graph
    hosts : iterable of str
        In natural order; each has a link, or there is but one.
    """

    def __init__(self, graph: Graph, hosts: Iterable[str]) -> None:
        self.hosts = tuple(hosts)
        self._graph = graph
        self._cables = Cables(graph)
        everyone = set(graph.hosts)
        forwarding = [host for host in graph.hosts if not everyone.isdisjoint(graph.neighbours[host])]
        core = dict.fromkeys([*natural_order(graph.switches), *natural_order(forwarding)])
        self._size = len(core)
        self._names = [*core, *(host for host in self.hosts if host not in core)]
        self._number = {name: number for number, name in enumerate(self._names)}
        self._part = [graph.components[host] for host in self.hosts]
        turns = {host: turn for turn, host in enumerate(natural_order(graph.hosts))}
        self._turn = [turns[host] for host in self.hosts]
        self._choices: dict[tuple[int, int], tuple[list[tuple[int, int]], int]] = {}

    @property
    def slowness(self) -> list[float]:
        """How much slower each cable is than the fastest."""
        return self._cables.slowness

    @property
    def ends(self) -> list[tuple[str, str]]:
        """The vertices that each cable leads from and to."""
        return self._cables.ends

    def links(self, a: int, b: int) -> tuple[int, ...]:
        """The cables of one shortest way."""
        if self._part[a] != self._part[b]:
            return self._cables.unknown(self.hosts[a], self.hosts[b], self._unknown)
        way = []
        here, end = self._number[self.hosts[a]], self._number[self.hosts[b]]
        while here != end:
            there, turn = self._onwards(here, b)
            way.append(self._cables.number(self._names[here], self._names[there], self._link(here, there), turn))
            here = there
        return tuple(way)

    def distances(self, a: Hosts, b: Hosts) -> Distances:
        """Links between the hosts `a` and the hosts `b`, [a, b]."""
        table = self._between_groups[np.ix_(self._group_of[a], self._group_of[b])]
        table[a[:, None] == b] = 0
        return table

    @cached_property
    def groups(self) -> list[tuple[int, ...]]:
        """Hosts by number that differ in nothing but their name: each hangs on the same switches, or is alone."""
        members: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, host in enumerate(self.hosts):
            vertex = self._number[host]
            members[(vertex,) if vertex < self._size else (-1, *self._neighbours[vertex])].append(number)
        return list(map(tuple, members.values()))

    @cached_property
    def _between_groups(self) -> Distances:
        """Links between hosts of any two groups, [groups, groups]; on the diagonal between two hosts of the group."""
        table = self._known_ways.copy()
        table[table == UNREACHED] = self._unknown
        return table

    @cached_property
    def _known_ways(self) -> Distances:
        """As `_between_groups`, with `UNREACHED` where no way is known."""
        firsts = [self._number[self.hosts[group[0]]] for group in self.groups]
        rows = [
            self._far[vertex] if vertex < self._size else 1 + self._far[self._neighbours[vertex]].min(axis=0)
            for vertex in firsts
        ]
        return np.minimum(rows, UNREACHED).astype(np.int16)

    @cached_property
    def _unknown(self) -> int:
        """Links that a way counts as between parts of the machine."""
        return 1 + int(self._known_ways[self._known_ways < UNREACHED].max(initial=0))

    @cached_property
    def _group_of(self) -> NDArray[np.int64]:
        """Host by number to its group."""
        table = np.zeros(len(self.hosts), np.int64)
        for group, members in enumerate(self.groups):
            table[list(members)] = group
        return table

    @cached_property
    def _neighbours(self) -> list[list[int]]:
        """Vertex to those next to it that forward."""
        around = self._graph.neighbours
        rows = ([self._number.get(v, self._size) for v in around[name]] for name in self._names)
        return [sorted(vertex for vertex in row if vertex < self._size) for row in rows]

    @cached_property
    def _far(self) -> NDArray[np.int16]:
        """Links from a vertex that forwards to the hosts of a group, [vertices, groups].

        One search from all groups at once: each vertex keeps the groups that have reached it as bits of an integer.
        """
        count = len(self.groups)
        fresh, below = self._starts()
        reached = [0] * self._size
        far = np.full((self._size, count), UNREACHED, np.int16)
        level = 0
        while fresh or below:
            for vertex, bits in fresh.items():
                reached[vertex] |= bits
                packed = np.frombuffer(bits.to_bytes((count + 7) // 8, "little"), np.uint8)
                far[vertex, np.unpackbits(packed, count=count, bitorder="little").view(bool)] = level
            arriving, below = below, {}
            for vertex, bits in fresh.items():
                for neighbour in self._neighbours[vertex]:
                    arriving[neighbour] = arriving.get(neighbour, 0) | bits
            fresh = {vertex: new for vertex, bits in arriving.items() if (new := bits & ~reached[vertex])}
            level += 1
        return far

    def _starts(self) -> tuple[dict[int, int], dict[int, int]]:
        """Vertex to the groups, as bits, whose hosts it is, and to those whose hosts hang on it."""
        itself: dict[int, int] = defaultdict(int)
        below: dict[int, int] = defaultdict(int)
        for group, members in enumerate(self.groups):
            vertex = self._number[self.hosts[members[0]]]
            for start in (vertex,) if vertex < self._size else self._neighbours[vertex]:
                (itself if start == vertex else below)[start] |= 1 << group
        return itself, below

    def _onwards(self, here: int, b: int) -> tuple[int, int]:
        """The next vertex on the way to host `b`, and whose turn it is among its cables."""
        end = self._number[self.hosts[b]]
        if end >= self._size and here in self._neighbours[end]:
            return end, self._turn[b]
        group = int(self._group_of[b])
        if (here, group) not in self._choices:
            self._choices[here, group] = self._dealt(here, group)
        choices, in_row = self._choices[here, group]
        return choices[self._turn[b] // in_row % len(choices)]

    def _dealt(self, here: int, group: int) -> tuple[list[tuple[int, int]], int]:
        """Next vertices and cables on the shortest ways to a group, and how many turns in a row each of them has."""
        around = np.array(self._neighbours[here])
        far = self._far[around, group]
        best = around[far == far.min()].tolist()
        choices = [(vertex, cable) for vertex in best for cable in range(self._link(here, vertex).cables)]
        if here >= self._size:
            return choices, 1
        return choices, self._in_row[min(here, best[0], key=self._levels.__getitem__)]

    @cached_property
    def _in_row(self) -> list[int]:
        """Up a tree: how many destinations in a row come to each vertex by different ways from the level below."""
        in_row = [1] * self._size
        for here in sorted(range(self._size), key=self._levels.__getitem__):
            above = [vertex for vertex in self._neighbours[here] if self._levels[vertex] > self._levels[here]]
            ways = in_row[here] * sum(self._link(here, vertex).cables for vertex in above)
            for vertex in above:
                if self._levels[vertex] == self._levels[here] + 1:
                    in_row[vertex] = ways
        return in_row

    @cached_property
    def _levels(self) -> list[int]:
        """Links from each vertex that forwards to the nearest host, at least 1."""
        levels: list[int] = np.maximum(self._far.min(axis=1), 1).tolist()
        return levels

    def _link(self, here: int, there: int) -> Link:
        return self._graph.neighbours[self._names[here]][self._names[there]]
