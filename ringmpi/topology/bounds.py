"""What no ring over the hosts of a job can do without."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ringmpi.topology.cities import MOST_FOR_TREE, MOST_HOSTS, Cities
from ringmpi.topology.cost import NOTHING, Cost
from ringmpi.topology.depth_first import JoiningTree
from ringmpi.topology.graph import Graph, Link
from ringmpi.topology.grid_routes import GridRoutes
from ringmpi.topology.routes import Distances
from ringmpi.topology.spanning_tree import clusters_bound, shortest_tree

ASCENT_STEPS = 100


def lower_bound(graph: Graph, cities: Cities, tree: JoiningTree | None) -> Cost:
    """The least congestion, the least dilation and the least hops of any ring, each by itself.

    Parameters
    ----------
    graph : Graph
    cities : Cities
        All hosts of the job.
    tree : JoiningTree or None
        What joins them, if that is a tree.
    """
    hosts = cities.routes.hosts
    if len(hosts) < 2:
        return NOTHING
    hops, dilation = _grid_bounds(cities.routes) if isinstance(cities.routes, GridRoutes) else (0, 1)
    if tree:
        hops = 2 * len(tree.links)
    if len(cities) <= MOST_FOR_TREE:
        hops = max(hops, clusters_bound(cities.tree_lengths))
        dilation = max(dilation, int(max(cities.tree_lengths)))
    if len(hosts) <= MOST_HOSTS:
        hops, dilation = max(hops, hops_bound(cities.table)), max(dilation, dilation_bound(cities.table))
    return Cost(_congestion_bound(graph, hosts, tree), dilation, hops)


def _congestion_bound(graph: Graph, hosts: tuple[str, ...], tree: JoiningTree | None) -> float:
    """Each host sends a block over a cable of its own; each link of a tree carries one; so does what is unknown."""
    rates = [_rate(link) for link in graph.links] or [1.0]
    fastest = max(rates)
    if len({graph.components[host] for host in hosts}) > 1:
        return fastest / min(rates)
    own = [max(map(_rate, graph.neighbours[host].values()), default=fastest) for host in hosts]
    return fastest / min([*own, *map(_rate, tree.links if tree else ())])


def _rate(link: Link) -> float:
    return link.capacity / link.cables


def _grid_bounds(routes: GridRoutes) -> tuple[int, int]:
    """Hops and dilation on grids.

    A ring takes a link for each place, and two for each host that hangs on the switch of its place. Where all ways
    round are even, places have two colours, and equal colours are two links apart: that costs one link more for each
    place that one colour has more than the other.
    """
    places = {(grid.name, place) for grid, place in zip(routes.grids, routes.places, strict=True)}
    hanging = len(routes.hosts) if routes.hanging else 0
    if len(places) < 2 or len({grid.name for grid in routes.grids}) > 1:
        return 2 * hanging, 1
    grid = routes.grids[0]
    even = all(size % 2 == 0 or not wrap for size, wrap in zip(grid.shape, grid.wrap, strict=True))
    more = abs(sum((-1) ** sum(place) for _, place in places)) if even else 0
    return 2 * hanging + len(places) + more, 1 + (more > 0) + 2 * (hanging > 0)


def hops_bound(table: Distances) -> int:
    """Links that all edges of a ring over these cities have together, at least.

    The larger of what the two nearest neighbours of each city need, and one-trees under the best prices found (M. Held
    and R. M. Karp, Operations Research 18, 1970). Where all closed ways are even, an odd bound is one too low.

    Parameters
    ----------
    table : array, [cities, cities], int
        Links between any two.
    """
    size = len(table)
    if size < 3:
        return int(table.sum())
    nearest = np.partition(table + np.diag(np.full(size, table.max())), 1)[:, :2]
    degrees = -(-int(nearest.sum()) // 2)
    bound = max(degrees, _one_tree_bound(table, degrees))
    return bound + (bound % 2 and _always_even(table))


def _one_tree_bound(table: Distances, target: int) -> int:
    """The best of the one-trees met while prices make cities of degree 1 cheaper and those of degree 3 dearer."""
    size = len(table)
    prices = np.zeros(size)
    best = 0.0
    width = 1.0
    for step in range(ASCENT_STEPS):
        priced = table + prices[:, None] + prices
        inner = shortest_tree(priced[1:, 1:].__getitem__, size - 1)
        degrees = np.zeros(size)
        children = 1 + np.array(inner.order[1:])
        np.add.at(degrees, children, 1)
        np.add.at(degrees, 1 + np.array(inner.above)[children - 1], 1)
        ends = 1 + np.argsort(priced[0, 1:], kind="stable")[:2]
        degrees[ends] += 1
        degrees[0] = 2
        length = sum(inner.lengths) + priced[0, ends].sum() - 2 * prices.sum()
        best = max(best, length)
        excess = degrees - 2
        if not excess.any():
            break
        if step and step % 10 == 0:
            width *= 0.7
        prices = prices + width * max(target + 1 - length, 0.5) / (excess @ excess) * excess
    return int(np.ceil(best - 1e-6))


def _always_even(table: Distances) -> bool:
    """Whether the cities have two colours, and ways of even length join those of one colour alone."""
    colour = table[0] % 2
    return not ((table + colour[:, None] + colour) % 2).any()


def dilation_bound(table: Distances) -> int:
    """Links on the longest edge of any ring over these cities, at least.

    Edges that long have to join all cities, and still have to when any one city is taken away: a ring does.
    """
    size = len(table)
    if size < 3:
        return int(table.max(initial=0))
    lengths = np.unique(table[table > 0])
    second = int(np.partition(table + np.diag(np.full(size, table.max())), 1)[:, 1].max())
    low, high = int(np.searchsorted(lengths, second)), len(lengths) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _hold_together(table <= lengths[middle]) else (middle + 1, high)
    return int(lengths[low])


def _hold_together(linked: NDArray[np.bool_]) -> bool:
    """Whether a graph stays in one piece when any one vertex is taken away; rows as bits of integers."""
    rows = [int.from_bytes(row.tobytes(), "little") for row in np.packbits(linked, axis=1, bitorder="little")]
    everyone = (1 << len(rows)) - 1
    return all(_reached(rows, everyone & ~(1 << gone)) == everyone & ~(1 << gone) for gone in range(len(rows)))


def _reached(rows: list[int], allowed: int) -> int:
    """The vertices, as bits, that the lowest allowed one reaches over allowed ones."""
    reached = fresh = allowed & -allowed
    while fresh:
        arriving = 0
        while fresh:
            lowest = fresh & -fresh
            arriving |= rows[lowest.bit_length() - 1]
            fresh ^= lowest
        fresh = arriving & allowed & ~reached
        reached |= fresh
    return reached
