"""Rings that may be the best, the likeliest first."""

from __future__ import annotations

from collections.abc import Iterator

from ringmpi.topology.cities import MOST_FOR_TREE, Cities
from ringmpi.topology.cost import Cost
from ringmpi.topology.depth_first import JoiningTree, depth_first_order
from ringmpi.topology.grid_routes import GridRoutes
from ringmpi.topology.grid_walk import grid_ring
from ringmpi.topology.short_rings import short_rings
from ringmpi.topology.spanning_tree import walk_within_three

FEWEST_TO_SEARCH = 5  # cities; smaller rings are all tried
MOST_TO_SEARCH = 12_000  # above, a table of all ways is too large


def candidate_rings(cities: Cities, tree: JoiningTree | None, bound: Cost) -> Iterator[list[int]]:
    """Rings over the hosts of a job: what its network suggests, walks of a shortest spanning tree, what a search finds.

    Where distances are those of a hierarchy, the order in which cities join the tree is as good as a depth-first one.
    """
    routes = cities.routes
    first = list(range(len(routes.hosts)))
    yield first
    if tree:
        number = {host: place for place, host in enumerate(routes.hosts)}
        first = [number[host] for host in depth_first_order(tree, routes.hosts)]
    elif isinstance(routes, GridRoutes):
        first = grid_ring(routes)
    yield first
    starts = [cities.shrink(first)]
    if len(cities) <= MOST_FOR_TREE:
        starts += [cities.tree.order, walk_within_three(cities.tree)]
        yield from map(cities.expand, starts[1:])
    if FEWEST_TO_SEARCH <= len(cities) <= MOST_TO_SEARCH:
        yield from map(cities.expand, short_rings(cities.table, starts, dilation=bound.dilation, hops=bound.hops))
