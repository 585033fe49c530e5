"""Shortest spanning trees of hosts, the orders that follow them, and what they say of every ring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.int16] | NDArray[np.float64]


@dataclass(frozen=True)
class ShortestTree:
    """A spanning tree whose edges sum to the least.

    Attributes
    ----------
    order : list of int
        Cities in the order in which they join: a cluster is gone through before the next one is begun.
    above : list of int
        For each city the one that it joined, -1 for the first.
    lengths : list of int
        Of the edges, in the order of joining.
    """

    order: list[int]
    above: list[int]
    lengths: list[float]


def shortest_tree(row: Callable[[int], Row], size: int) -> ShortestTree:
    """The tree that grows from city 0 by the nearest city, of equal ones by the lowest.

    Source: R. C. Prim, Bell System Technical Journal 36 (1957). `row(c)` gives the distances of city c, [size].
    """
    near = np.array(row(0), dtype=np.float64)
    above = np.zeros(size, np.int64)
    above[0] = -1
    near[0] = np.inf
    joined = np.zeros(size, bool)
    joined[0] = True
    order, lengths = [0], []
    for _ in range(size - 1):
        city = int(near.argmin())
        order.append(city)
        lengths.append(float(near[city]))
        joined[city] = True
        distances = row(city)
        nearer = (distances < near) & ~joined
        near[nearer] = distances[nearer]
        above[nearer] = city
        near[city] = np.inf
    return ShortestTree(order, above.tolist(), lengths)


def walk_within_three(tree: ShortestTree) -> list[int]:
    """The cities in an order in which neighbours, the last and the first too, are at most three edges of `tree` apart.

    A depth-first walk visits every other level on the way down and the rest on the way up, so that it never has to
    come back a long way. Source: M. Sekanina, Spisy Prirod. Fak. Univ. Brno 412 (1960).
    """
    below: list[list[int]] = [[] for _ in tree.above]
    for city in tree.order[1:]:
        below[tree.above[city]].append(city)
    walk = []
    waiting = [(0, 0, True)]
    while waiting:
        city, level, arriving = waiting.pop()
        if arriving == (level % 2 == 0):
            walk.append(city)
        if arriving:
            waiting.append((city, level, False))
            waiting.extend((child, level + 1, True) for child in reversed(below[city]))
    return walk


def clusters_bound(lengths: Sequence[float]) -> int:
    """Hops that no ring can do without over cities whose shortest tree has edges of these `lengths`.

    Take away all ways longer than t: a ring has to leave each of the clusters that are left. So at least as many of
    its edges as there are clusters (if there are two or more) are longer than t, and edges sum to the count over all t.
    The bound is met where distances are those of a hierarchy: fat trees, blocks.
    """
    cut = np.array(lengths)
    return sum(1 + int((cut > t).sum()) for t in range(int(max(lengths, default=0))))
