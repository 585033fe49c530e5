"""The full cost made less, edge by edge: where blocks crowd on a cable, hosts change places."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from ringmpi.topology.cost import Cost, ring_cost
from ringmpi.topology.routes import Routes

MOST_WORK = 400_000  # edges to look at: a second or two


def relieved(routes: Routes, ring: list[int], cost: Cost, bound: Cost) -> tuple[Cost, list[int]]:
    """A ring that costs no more than `ring`, which costs `cost`, with its cost.

    Moves at the edges that set the cost are tried in turn, and the first one that pays is made. The search ends when
    none pays, when the cost is down to `bound`, or when it has taken long.
    """
    work = MOST_WORK
    paid = True
    while paid and cost > bound:
        paid = False
        for moved in _moves(ring, _worst_edges(routes, ring, cost, bound)):
            work -= len(ring)
            if work < 0:
                return cost, ring
            new = ring_cost(routes, moved)
            if new < cost:
                ring, cost, paid = moved, new, True
                break
    return cost, ring


def _worst_edges(routes: Routes, ring: list[int], cost: Cost, bound: Cost) -> list[int]:
    """The edges, by the place of their first host, that keep the cost above the bound."""
    ways = [routes.links(a, b) for a, b in pairwise((*ring, ring[0]))]
    if cost.congestion > bound.congestion:
        users: dict[int, list[int]] = defaultdict(list)
        for place, way in enumerate(ways):
            for link in way:
                users[link].append(place)
        busiest = (places for link, places in users.items() if len(places) * routes.slowness[link] == cost.congestion)
        return sorted({place for places in busiest for place in places})
    least = cost.dilation if cost.dilation > bound.dilation else 1 + min(map(len, ways))
    return [place for place, way in enumerate(ways) if len(way) >= least]


def _moves(ring: list[int], edges: list[int]) -> Iterator[list[int]]:
    """The ring the other way round; then, for each edge, parts that begin or end there, turned round and moved."""
    yield ring[::-1]
    for edge in edges:
        turned = ring[edge + 1 :] + ring[: edge + 1]  # the edge leads from the last host to the first
        size = len(turned)
        for cut in range(2, size - 1):
            yield turned[:cut][::-1] + turned[cut:]
        for length in (1, 2, 3):
            for part, rest in ((turned[:length], turned[length:]), (turned[-length:], turned[:-length])):
                for place in range(1, len(rest)):
                    yield rest[:place] + part + rest[place:]
                    if length > 1:
                        yield rest[:place] + part[::-1] + rest[place:]
