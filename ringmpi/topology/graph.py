"""The one model of a machine: hosts, switches, links between them, coordinates, devices inside hosts.

Hosts and switches are the vertices of an undirected graph. A vertex is named by one string that no other vertex bears.
Every link is full duplex: `capacity` holds in each direction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from ringmpi.topology.node import Node

Kind = Literal["tree", "block", "ring", "torus", "dragonfly", "fabric", "order", "none"]
GIGABIT = 1e9 / 8  # bytes
EVERY_HOST = "*"  # key of `Graph.devices` for hosts that have no entry of their own


@dataclass(frozen=True, slots=True)
class Link:
    """All cables between two vertices.

    Attributes
    ----------
    ends : tuple of str
        The two vertices, sorted.
    capacity : float
        Of all cables together, in each direction; in `Graph.unit`.
    cables : int
        How many there are.
    rails : tuple of str
        Adapters (HCAs) of the host that the cables end at, sorted; empty between switches or where no source tells.
    """

    ends: tuple[str, str]
    capacity: float = 1.0
    cables: int = 1
    rails: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Grid:
    """A box, mesh or torus; a place may be empty.

    Attributes
    ----------
    name : str
    shape : tuple of int
        Places along each dimension.
    wrap : tuple of bool
        Whether the last place of a dimension is linked to the first.
    coordinates : mapping of str to tuple of int
        Vertex (a host, or the switch that hosts hang on) to its place, each number from 0 to below `shape`.
    """

    name: str
    shape: tuple[int, ...]
    wrap: tuple[bool, ...]
    coordinates: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Graph:
    """A machine, or what a source tells of it.

    Attributes
    ----------
    kind : str
        tree (every vertex below a root has parents; several in a fat tree), block (a tree of Slurm's blocks), ring,
        torus (see `grids`), dragonfly (a tree of groups, chassis, blades), fabric (links, nothing more is known), order
        (hosts in a good order, no links), none (hosts, no links).
    hosts : tuple of str
        In the order of the source.
    switches : tuple of str
        Real ones and those that stand for a block, a group or a blade.
    links : tuple of Link
        One for each pair of linked vertices.
    parents : mapping of str to tuple of str
        Vertex to what is directly above it. Empty where no hierarchy is known; a root has no entry.
    grids : tuple of Grid
    devices : mapping of str to Node
        What is inside a host, by host; `EVERY_HOST` stands for all others.
    labels : mapping of str to str
        What people call a switch that is named by its GUID here.
    aliases : mapping of str to str
        Further name (GUID) to host or switch, from a file that only maps names.
    unit : str
        Of capacities: "Gbit/s", or "cables" where no source tells a rate.
    remarks : tuple of str
        What could not be placed or understood, each with file and line.
    """

    kind: Kind
    hosts: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    parents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    grids: tuple[Grid, ...] = ()
    devices: Mapping[str, Node] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    unit: str = "cables"
    remarks: tuple[str, ...] = ()

    @cached_property
    def neighbours(self) -> dict[str, dict[str, Link]]:
        """Vertex to the vertices that it is linked to, each with the link."""
        table: dict[str, dict[str, Link]] = {vertex: {} for vertex in (*self.hosts, *self.switches)}
        for link in self.links:
            a, b = link.ends
            table[a][b] = table[b][a] = link
        return table

    @cached_property
    def components(self) -> dict[str, int]:
        """Vertex to the number of its connected part: vertices of different parts have no known path."""
        part: dict[str, int] = {}
        for number, start in enumerate((*self.hosts, *self.switches)):
            if start not in part:
                part |= dict.fromkeys(self.distances(start), number)
        return part

    @cached_property
    def unlinked(self) -> tuple[str, ...]:
        """Hosts that no link reaches."""
        return tuple(host for host in self.hosts if not self.neighbours[host])

    @cached_property
    def _short_names(self) -> dict[str, str | None]:
        """Name before the first dot to host; None where several hosts share it."""
        names: dict[str, str | None] = {}
        for host in self.hosts:
            short = host.partition(".")[0]
            names[short] = None if short in names else host
        return names

    @cached_property
    def _host_set(self) -> frozenset[str]:
        return frozenset(self.hosts)

    def host(self, name: str) -> str | None:
        """The host that is called `name`: exactly, or with a domain where the other has none and only one host fits."""
        if name in self._host_set:
            return name
        found = self._short_names.get(name.partition(".")[0])
        return None if found is None or ("." in name and "." in found) else found

    def inside(self, host: str) -> Node | None:
        """The devices of `host`, where a source told them."""
        return self.devices.get(host, self.devices.get(EVERY_HOST))

    def distances(self, start: str) -> dict[str, int]:
        """Links on the shortest way from `start` to each vertex that can be reached."""
        found = {start: 0}
        waiting = deque([start])
        while waiting:
            vertex = waiting.popleft()
            for neighbour in self.neighbours[vertex]:
                if neighbour not in found:
                    found[neighbour] = found[vertex] + 1
                    waiting.append(neighbour)
        return found


def bundled(links: Iterable[Link]) -> tuple[Link, ...]:
    """Links with those of one pair of vertices put together: capacities and cables add up."""
    table: dict[tuple[str, str], Link] = {}
    for link in links:
        ends = (min(link.ends), max(link.ends))
        old = table.get(ends)
        if old is None:
            table[ends] = link if link.ends == ends else Link(ends, link.capacity, link.cables, link.rails)
        else:
            rails = tuple(sorted({*old.rails, *link.rails}))
            table[ends] = Link(ends, old.capacity + link.capacity, old.cables + link.cables, rails)
    return tuple(table.values())
