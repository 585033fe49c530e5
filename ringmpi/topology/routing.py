"""Which links a block passes on its way from host to host.

No file tells all of a machine's tables, so ways follow what machines do by default: along one dimension after the
other where hosts or switches form a grid, else by destination along a shortest way.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from ringmpi.topology.graph import Graph, Grid
from ringmpi.topology.grid_routes import GridRoutes
from ringmpi.topology.link_routes import LinkRoutes
from ringmpi.topology.natural_order import natural_order


def routes_between(graph: Graph, hosts: Iterable[str]) -> GridRoutes | LinkRoutes:
    """The ways between `hosts`, each of which has a link or a place in a grid, on the machine `graph`."""
    ordered = natural_order(set(hosts))
    anchors = _anchors(graph, ordered)
    return GridRoutes(graph, anchors) if len(anchors) == len(ordered) else LinkRoutes(graph, ordered)


def _anchors(graph: Graph, hosts: Iterable[str]) -> dict[str, tuple[Grid, str]]:
    """Host to its grid and the vertex there that it is or hangs on, where there is one."""
    grid_of = {vertex: grid for grid in graph.grids if _whole(graph, grid) for vertex in grid.coordinates}
    anchors = {}
    for host in hosts:
        near = [host] if host in grid_of else [vertex for vertex in graph.neighbours[host] if vertex in grid_of]
        if len(near) == 1:
            anchors[host] = (grid_of[near[0]], near[0])
    return anchors


def _whole(graph: Graph, grid: Grid) -> bool:
    """Whether ways go by dimension: where a switch is missing, machines go around, by means that no file tells."""
    return len(grid.coordinates) == prod(grid.shape) or set(graph.hosts).issuperset(grid.coordinates)
