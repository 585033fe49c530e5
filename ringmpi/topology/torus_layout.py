"""Where the switches of an InfiniBand torus stand: from the cables and a few seed links alone.

opensm's torus-2QoS.conf names one switch and its neighbour along each dimension; every other place follows, because
a place is given by the neighbours that are known already. Where a small dimension leaves a choice, each is tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set

from ringmpi.errors import TopologyError
from ringmpi.topology.building import box_places
from ringmpi.topology.graph import Graph, Grid

MOST_TRIES = 200_000


class Seed:
    """The links of torus-2QoS.conf: each goes from a switch to its neighbour, up or down one dimension."""

    def __init__(self) -> None:
        self._links: list[tuple[int, bool, str, str]] = []

    def link(self, axis: int, up: bool, start: str, end: str) -> None:
        """From switch `start` one step along `axis`, up or down, is switch `end`."""
        self._links.append((axis, up, start, end))

    def places(self, shape: tuple[int, ...], where: str) -> dict[str, tuple[int, ...]]:
        """The switches of the first seed by GUID; the one that its links share is at the origin."""
        if not self._links:
            return {}
        origin = self._links[0][2]
        found = {origin: (0,) * len(shape)}
        for axis, up, start, end in self._links:
            if start != origin:
                continue  # of a further seed, which opensm uses where switches of the first have failed
            step = (1 if up else -1) % shape[axis]
            place = tuple(step if at == axis else 0 for at in range(len(shape)))
            if place in found.values() and found.get(end) != place:
                raise TopologyError(f"{where}: two seed links lead to place {place}; one of p and m is enough")
            found[end] = place
        return found


def laid_out(graph: Graph, seed: Grid) -> dict[str, tuple[int, ...]] | None:
    """The place of every switch; None where the cables are not those of a whole torus or mesh of this shape.

    Parameters
    ----------
    graph : Graph
        With the switches and their links.
    seed : Grid
        Shape, wrap, and the places of the first switches.
    """
    switches = set(graph.switches)
    near = {switch: graph.neighbours[switch].keys() & switches for switch in graph.switches}
    places = {place: vertex for vertex, place in seed.coordinates.items()}
    if not places or not set(places.values()) <= switches or math.prod(seed.shape) != len(switches):
        return None
    order = sorted(box_places(seed.shape), key=lambda place: (max(place), place))
    return _search(near, places, order, _neighbours(seed))


def _neighbours(grid: Grid) -> dict[tuple[int, ...], set[tuple[int, ...]]]:
    """Place to the places one step away."""
    table: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for place in box_places(grid.shape):
        table[place] = set()
        for axis, (size, wrap) in enumerate(zip(grid.shape, grid.wrap, strict=True)):
            for to in (place[axis] - 1, place[axis] + 1):
                if size > 1 and (wrap or 0 <= to < size):
                    table[place].add((*place[:axis], to % size, *place[axis + 1 :]))
    return table


def _search(
    near: Mapping[str, Set[str]],
    places: dict[tuple[int, ...], str],
    order: list[tuple[int, ...]],
    beside: Mapping[tuple[int, ...], set[tuple[int, ...]]],
) -> dict[str, tuple[int, ...]] | None:
    """Fill the free places in `order`, going back where none of the switches fits."""
    used = set(places.values())
    free = [place for place in order if place not in places]
    choices: list[Iterator[str]] = []
    for _ in range(MOST_TRIES):
        if len(choices) == len(free):
            whole = all(near[places[p]] == {places[q] for q in beside[p]} for p in order)
            return {vertex: place for place, vertex in places.items()} if whole else None
        place = free[len(choices)]
        choices.append(iter(_fitting(near, places, used, beside, place)))
        while choices:
            place = free[len(choices) - 1]
            used.discard(places.pop(place, ""))
            vertex = next(choices[-1], None)
            if vertex is not None:
                places[place] = vertex
                used.add(vertex)
                break
            choices.pop()
        if not choices:
            return None
    return None


def _fitting(
    near: Mapping[str, Set[str]],
    places: Mapping[tuple[int, ...], str],
    used: Set[str],
    beside: Mapping[tuple[int, ...], set[tuple[int, ...]]],
    place: tuple[int, ...],
) -> list[str]:
    """The unused switches that are linked to the known neighbours of a place and to no other known switch."""
    known = {places[other] for other in beside[place] if other in places}
    if not known:
        return sorted(near.keys() - used)
    candidates = set.intersection(*(set(near[vertex]) for vertex in known)) - used
    return sorted(vertex for vertex in candidates if near[vertex] & used == known)
