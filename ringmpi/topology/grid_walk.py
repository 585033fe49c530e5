"""A first ring on tori and meshes: the closed walk of the box that a job fills, past the places that it leaves out."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from ringmpi.topology.box_cycles import Place, closed_walk
from ringmpi.topology.graph import Grid
from ringmpi.topology.grid_routes import GridRoutes

MOST_PLACES = 1_000_000  # of the box


def grid_ring(routes: GridRoutes) -> list[int]:
    """All hosts, grid by grid; along links all the way where the hosts fill a box or a torus."""
    at: dict[str, dict[Place, list[int]]] = {}
    for host, (grid, place) in enumerate(zip(routes.grids, routes.places, strict=True)):
        at.setdefault(grid.name, {}).setdefault(place, []).append(host)
    grids = {grid.name: grid for grid in routes.grids}
    return [host for name, hosts in at.items() for place in _walk(grids[name], hosts) for host in hosts[place]]


def _walk(grid: Grid, places: Iterable[Place]) -> list[Place]:
    """`places` in the order of a closed walk over the smallest box that has them all, empty layers left out."""
    wanted = set(places)
    layers = [_layers({place[axis] for place in wanted}, size) for axis, size in enumerate(grid.shape)]
    shape = [len(each) for each in layers]
    if prod(shape) > MOST_PLACES:
        return sorted(wanted)
    wrap = [wraps and len(each) == size for wraps, each, size in zip(grid.wrap, layers, grid.shape, strict=True)]
    walk = (tuple(layers[axis][at] for axis, at in enumerate(place)) for place in closed_walk(shape, wrap))
    return [place for place in walk if place in wanted]


def _layers(used: set[int], size: int) -> list[int]:
    """The used layers of a dimension, in order, beginning after the widest gap."""
    layers = sorted(used)
    gaps = [(layer - layers[place - 1]) % size for place, layer in enumerate(layers)]
    start = gaps.index(max(gaps))
    return layers[start:] + layers[:start]
