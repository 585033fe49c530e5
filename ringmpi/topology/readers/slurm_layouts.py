"""Slurm's layouts: what topology.conf, topology.yaml and scontrol say in different ways becomes a graph here.

Source: the manual pages topology.conf(5) and topology.yaml(5) of Slurm 26.05, and `src/plugins/topology`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ringmpi.errors import TopologyError
from ringmpi.topology.building import Builder, box_places, some
from ringmpi.topology.graph import Graph, Grid


@dataclass(frozen=True)
class Named:
    """One switch, block or ring: where it stands in the file, its name, what is directly in it."""

    where: str
    name: str
    nodes: Sequence[str] = ()
    switches: Sequence[str] = ()


@dataclass(frozen=True)
class Region:
    """A box of nodes inside a torus; x runs fastest."""

    where: str
    anchor: tuple[int, ...]
    shape: tuple[int, ...]
    nodes: Sequence[str]


@dataclass(frozen=True)
class Torus:
    """A torus and the regions of it that hold nodes."""

    where: str
    name: str
    shape: tuple[int, ...]
    regions: Sequence[Region] = field(default_factory=list)


def tree(switches: Sequence[Named]) -> Graph:
    """topology/tree: a switch may have several parents; depths may differ; there may be several roots."""
    builder = Builder()
    _once(switches, "switch")
    hosts = {node for switch in switches for node in switch.nodes}
    vertex = _Apart(hosts)
    for switch in switches:
        builder.switch(vertex[switch.name], switch.where)
    for switch in switches:
        above = vertex[switch.name]
        for child in switch.switches:
            if vertex[child] not in builder.switches:
                builder.remark(f"{switch.where}: switch {child} is below {switch.name} but has no line of its own")
            builder.under(builder.switch(vertex[child], switch.where), above)
        for node in switch.nodes:
            builder.under(builder.host(node, switch.where), above)
    _no_cycle(builder.parents, switches[0].where if switches else "")
    return _with_roots_remarked(builder.graph("tree"), switches[0].where if switches else "")


class _Apart(dict[str, str]):
    """Name of a switch to its vertex: the name, unless a host bears it too."""

    def __init__(self, hosts: set[str]) -> None:
        super().__init__()
        self._hosts = hosts

    def __missing__(self, name: str) -> str:
        self[name] = f"switch {name}" if name in self._hosts else name
        return self[name]


def _once(parts: Sequence[Named], what: str) -> None:
    """Refuse a second line for the same name."""
    first: dict[str, str] = {}
    for part in parts:
        if part.name in first:
            raise TopologyError(
                f"{part.where}: {what} {part.name!r} is defined a second time, first at {first[part.name]}; keep one"
            )
        first[part.name] = part.where


def _no_cycle(parents: Mapping[str, Mapping[str, None]], where: str) -> None:
    """Refuse a switch that is below itself: take away what has no parents left, again and again."""
    above = {child: set(names) for child, names in parents.items()}
    children: dict[str, list[str]] = {}
    for child, names in parents.items():
        for name in names:
            children.setdefault(name, []).append(child)
    free = [name for name in children if name not in above]
    while free:
        name = free.pop()
        for child in children.get(name, ()):
            above[child].discard(name)
            if not above[child]:
                del above[child]
                free.append(child)
    if above:
        raise TopologyError(f"{where}: these are below themselves: {some(sorted(above))}; a tree has no cycle")


def _with_roots_remarked(graph: Graph, where: str) -> Graph:
    """Say so where not every host can reach every other."""
    separate = len({graph.components[host] for host in graph.hosts})
    if separate < 2:
        return graph
    remark = f"{where}: {separate} parts without a common root: no path is known between their hosts"
    return replace(graph, remarks=(*graph.remarks, remark))


def block(blocks: Sequence[Named], sizes: Sequence[int] = ()) -> Graph:
    """topology/block: consecutive blocks are put together, as many as each of `sizes` holds of the first.

    Blocks are all linked in the end, so what remains stands under one vertex, "all blocks".
    """
    builder = Builder()
    _once(blocks, "block")
    vertex = _Apart({node for part in blocks for node in part.nodes})
    for part in blocks:
        builder.switch(vertex[part.name], part.where)
        for node in part.nodes:
            builder.under(builder.host(node, part.where), vertex[part.name])
    level = [vertex[part.name] for part in blocks]
    where = blocks[0].where if blocks else ""
    together = 1
    for size in sizes[1:]:
        wanted = size // sizes[0]
        if size % sizes[0] or wanted % together or wanted <= together:
            raise TopologyError(f"{where}: block sizes {list(sizes)}: each must be a larger multiple of the one before")
        level = _aggregated(builder, level, wanted // together, where)
        together = wanted
    if len(level) > 1:
        _aggregated(builder, level, len(level), where, name="all blocks")
    return builder.graph("block")


def _aggregated(builder: Builder, level: Sequence[str], together: int, where: str, *, name: str = "") -> list[str]:
    """One vertex above each `together` vertices of a level."""
    above = []
    for start in range(0, len(level), together):
        group = level[start : start + together]
        if len(group) == 1:
            above.append(group[0])
            continue
        parent = builder.switch(name or f"{group[0]}..{group[-1]}", where)
        for child in group:
            builder.under(child, parent)
        above.append(parent)
    return above


def ring(rings: Sequence[Named]) -> Graph:
    """topology/ring: the order of the nodes is their position; the last is linked to the first."""
    builder = Builder()
    _once(rings, "ring")
    for part in rings:
        nodes = list(dict.fromkeys(part.nodes))
        if len(nodes) < len(part.nodes) or builder.hosts.keys() & set(nodes):
            raise TopologyError(f"{part.where}: a node appears twice on a ring; every node has one position")
        for node in nodes:
            builder.host(node, part.where)
        places = {node: (position,) for position, node in enumerate(nodes)}
        builder.grid(Grid(part.name, (max(len(nodes), 1),), (True,), places))
    return _with_roots_remarked(builder.graph("ring"), rings[0].where if rings else "")


def torus(toruses: Sequence[Torus]) -> Graph:
    """topology/torus3d: all dimensions wrap; places outside every region are empty."""
    builder = Builder()
    for part in toruses:
        places: dict[tuple[int, ...], str] = {}
        for region in part.regions:
            _fill(places, region, part.shape)
        for name in places.values():
            if name in builder.hosts:
                raise TopologyError(f"{part.where}: node {name!r} has two places; every node has one")
            builder.host(name, part.where)
        coordinates = {name: place for place, name in places.items()}
        builder.grid(Grid(part.name, part.shape, (True,) * len(part.shape), coordinates))
    return _with_roots_remarked(builder.graph("torus"), toruses[0].where if toruses else "")


def _fill(places: dict[tuple[int, ...], str], region: Region, shape: tuple[int, ...]) -> None:
    """Put the nodes of a region on its places."""
    size = math.prod(region.shape)
    if len(region.nodes) != size or len(set(region.nodes)) != size:
        raise TopologyError(
            f"{region.where}: {len(set(region.nodes))} different nodes for {size} places "
            f"({'x'.join(map(str, region.shape))}); expected one per place"
        )
    for offset, node in zip(box_places(region.shape), region.nodes, strict=True):
        place = tuple(a + b for a, b in zip(region.anchor, offset, strict=True))
        if any(at >= size for at, size in zip(place, shape, strict=True)) or place in places:
            raise TopologyError(f"{region.where}: place {place} is outside the torus {shape} or held already")
        places[place] = node
