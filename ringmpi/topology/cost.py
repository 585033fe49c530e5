"""What a ring costs on a machine: congestion, then dilation, then hops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ringmpi.topology.routes import Routes


@dataclass(frozen=True, slots=True, order=True)
class Cost:
    """Cost of a ring; costs are compared field by field, in this order.

    All ranks send blocks of one size at the same time, so that the slowest edge sets the time of a ring step.

    Attributes
    ----------
    congestion : float
        How much longer the busiest cable is busy than one block takes on the fastest cable of the machine: blocks that
        pass it in one direction in one ring step, times how much slower the cable is. 1 is a cable for each edge.
    dilation : int
        Links on the longest edge of the ring.
    hops : int
        Links on all edges.
    """

    congestion: float
    dilation: int
    hops: int


NOTHING = Cost(0.0, 0, 0)


def ring_cost(routes: Routes, ring: Sequence[int]) -> Cost:
    """The cost of `ring`: hosts by number, in ring order, the last followed by the first.

    A host may come several times, once for each of its ranks; an edge inside a host uses no link. Every link carries
    both directions at once, so each direction is counted alone.
    """
    loads, lengths = _passed(routes, ring)
    congestion = max((load * routes.slowness[link] for link, load in loads.items()), default=0.0)
    return Cost(congestion, max(lengths, default=0), sum(lengths))


def ring_loads(routes: Routes, ring: Sequence[int]) -> dict[tuple[str, str], int]:
    """The blocks that pass from one vertex to another in a ring step, over all cables, by both names."""
    loads: Counter[tuple[str, str]] = Counter()
    passed, ends = _passed(routes, ring)[0], routes.ends
    for link, load in passed.items():
        loads[ends[link]] += load
    return loads


def _passed(routes: Routes, ring: Sequence[int]) -> tuple[Counter[int], list[int]]:
    """The blocks on each cable, and the links of each edge."""
    loads: Counter[int] = Counter()
    lengths = []
    for a, b in pairwise((*ring, *ring[:1])):
        links = routes.links(a, b)
        loads.update(links)
        lengths.append(len(links))
    return loads, lengths
