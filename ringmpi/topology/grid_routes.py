"""Ways on tori and meshes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from ringmpi.topology.graph import Graph, Grid, Link
from ringmpi.topology.routes import Cables, Distances, Hosts

Place = tuple[int, ...]


class GridRoutes:
    """Dimension-order routes; hosts have places themselves, or hang on the switch at a place.

    Source: W. J. Dally and C. L. Seitz, IEEE Trans. Computers C-36 (1987). Empty places pass blocks on. Between two
    grids no way is known: it counts as one link more than the longest way within one, of cables as slow as the slowest.

    Parameters
    ----------
    graph : Graph
    anchors : mapping of str to (Grid, str)
        Host to its grid and its vertex there, itself or its switch; in natural order.
    """

    def __init__(self, graph: Graph, anchors: dict[str, tuple[Grid, str]]) -> None:
        self.hosts = tuple(anchors)
        self.grids = [grid for grid, _ in anchors.values()]
        self.places = [grid.coordinates[vertex] for grid, vertex in anchors.values()]
        self._graph = graph
        self._cables = Cables(graph)
        self._vertex = {
            (grid.name, place): vertex for grid in graph.grids for vertex, place in grid.coordinates.items()
        }
        axes = range(max(map(len, self.places)))
        self._at = np.array([(*place, *[0] * len(axes))[: len(axes)] for place in self.places], np.int16).T.copy()
        self._sizes = np.array([[_round(grid, axis) for axis in axes] for grid in self.grids], np.int16).T.copy()
        self._hanging = np.array([vertex != host for host, (_, vertex) in anchors.items()], np.int16)
        self._part = np.unique([grid.name for grid in self.grids], return_inverse=True)[1]
        self._far = 3 + int((self._sizes // 2).sum(axis=0).max())

    @property
    def slowness(self) -> list[float]:
        """How much slower each cable is than the fastest."""
        return self._cables.slowness

    @property
    def ends(self) -> list[tuple[str, str]]:
        """The vertices that each cable leads from and to."""
        return self._cables.ends

    @property
    def hanging(self) -> bool:
        """Whether every host hangs on the switch at its place."""
        return bool(self._hanging.all())

    def links(self, a: int, b: int) -> tuple[int, ...]:
        """Up to the switch, if any, along each dimension, and down."""
        grid = self.grids[a]
        if a == b:
            return ()
        if grid is not self.grids[b]:
            return self._cables.unknown(self.hosts[a], self.hosts[b], self._far)
        places = [self.places[a], *steps(grid, self.places[a], self.places[b])]
        way = [self._vertex.get((grid.name, place), f"{grid.name} {place}") for place in places]
        way = [self.hosts[a]] * int(self._hanging[a]) + way + [self.hosts[b]] * int(self._hanging[b])
        return tuple(self._cables.number(u, v, self._link(u, v), b) for u, v in zip(way, way[1:], strict=False))

    def _link(self, u: str, v: str) -> Link:
        """The link between neighbours; one plain cable if an empty place is among them."""
        return self._graph.neighbours.get(u, {}).get(v) or Link((u, v))

    def distances(self, a: Hosts, b: Hosts) -> Distances:
        """Links between the hosts `a` and the hosts `b`, [a, b]."""
        table = self._hanging[a, None] + self._hanging[b]
        for at, size in zip(self._at, self._sizes, strict=True):
            apart = abs(at[a, None] - at[b])
            table += np.minimum(apart, size[a, None] - apart)
        table[self._part[a, None] != self._part[b]] = self._far
        table[a[:, None] == b] = 0
        return table

    @cached_property
    def groups(self) -> list[tuple[int, ...]]:
        """Hosts at one place."""
        members: dict[tuple[str, Place], list[int]] = defaultdict(list)
        for number, (grid, place) in enumerate(zip(self.grids, self.places, strict=True)):
            members[grid.name, place].append(number)
        return list(map(tuple, members.values()))


def _round(grid: Grid, axis: int) -> int:
    """Links once round a dimension; without a wrap twice its size, so that the way round is never shorter."""
    if axis >= len(grid.shape):
        return 1
    return grid.shape[axis] if grid.wrap[axis] else 2 * grid.shape[axis]


def steps(grid: Grid, start: Place, end: Place) -> Iterator[Place]:
    """The places from `start`, which is left out, to `end`: dimension after dimension, upwards if both are equal."""
    place = list(start)
    for axis, size in enumerate(grid.shape):
        up = end[axis] - start[axis]
        if grid.wrap[axis]:
            down = (size - 1) // 2  # the most that going down may take
            up = (up + down) % size - down
        for _ in range(abs(up)):
            place[axis] = (place[axis] + (1 if up > 0 else -1)) % size
            yield tuple(place)
