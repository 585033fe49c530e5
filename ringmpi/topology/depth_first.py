"""Depth-first orders of trees.

A ring has to leave and to enter every sub-tree that holds some of its hosts but not all. A depth-first order does so
once, at every level at the same time, so that every link carries one block in each direction: no ring has less
congestion or fewer hops. Which child follows which is free; it decides the longest edge where depths differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ringmpi.topology.graph import Graph, Link
from ringmpi.topology.natural_order import natural_order


@dataclass(frozen=True)
class JoiningTree:
    """The part of a machine that joins the hosts of a job, if that part is a tree.

    Attributes
    ----------
    neighbours : dict of str to list of str
        In natural order.
    links : tuple of Link
    """

    neighbours: dict[str, list[str]]
    links: tuple[Link, ...]


def joining_tree(graph: Graph, hosts: Iterable[str]) -> JoiningTree | None:
    """The tree that is left when everything that leads to no host of a job is cut off; None if ways are not unique."""
    wanted = set(hosts)
    around = {vertex: dict(links) for vertex, links in graph.neighbours.items()}
    ends = [vertex for vertex, links in around.items() if len(links) < 2 and vertex not in wanted]
    while ends:
        end = ends.pop()
        for vertex in around.pop(end):
            del around[vertex][end]
            if len(around[vertex]) == 1 and vertex not in wanted:
                ends.append(vertex)
    links = {link.ends: link for row in around.values() for link in row.values()}
    start = next(iter(wanted))
    if len(links) != len(around) - 1 or len(_breadth_first(around, start)) != len(around):
        return None
    neighbours = {vertex: natural_order(row) for vertex, row in around.items()}
    return JoiningTree(neighbours, tuple(links.values()))


def _breadth_first(around: dict[str, dict[str, Link]] | dict[str, list[str]], start: str) -> dict[str, str]:
    """Each vertex that can be reached, in breadth-first order, to the one that it was reached from."""
    above = {start: ""}
    waiting = [start]
    for vertex in waiting:
        for neighbour in around[vertex]:
            if neighbour not in above:
                above[neighbour] = vertex
                waiting.append(neighbour)
    return above


@dataclass(frozen=True, slots=True)
class _Walk:
    """An order of the hosts of a sub-tree, and how far its first and its last host are below the top of it."""

    hosts: list[str]
    first: int
    last: int

    def turned(self) -> _Walk:
        return _Walk(self.hosts[::-1], self.last, self.first)

    def raised(self) -> _Walk:
        return _Walk(self.hosts, self.first + 1, self.last + 1)


def depth_first_order(tree: JoiningTree, hosts: Iterable[str]) -> list[str]:
    """The hosts in a depth-first order of `tree` whose longest edge is short.

    At each vertex, sub-trees with far ends and sub-trees with near ends take turns, and the nearest hosts come first
    and last, where the next level joins them.
    """
    wanted = set(hosts)
    root = _centre(tree)
    above = _breadth_first(tree.neighbours, root)
    below: dict[str, list[_Walk]] = {vertex: [_Walk([vertex], 0, 0)] if vertex in wanted else [] for vertex in above}
    for vertex in reversed(above):
        if vertex != root:
            walk = _joined(_open(below.pop(vertex)))
            below[above[vertex]].append(walk.raised())
    return _joined(_take_turns(below[root])).hosts


def _centre(tree: JoiningTree) -> str:
    """The middle of a longest way, of the two if there are two the one that comes first in natural order."""
    start = min(tree.neighbours)
    end = list(_breadth_first(tree.neighbours, start))[-1]
    above = _breadth_first(tree.neighbours, end)
    way = [list(above)[-1]]
    while way[-1] != end:
        way.append(above[way[-1]])
    return natural_order(way[(len(way) - 1) // 2 : len(way) // 2 + 1])[0]


def _alike(walks: Sequence[_Walk]) -> bool:
    return len({(walk.first, walk.last) for walk in walks}) == 1


def _open(walks: list[_Walk]) -> list[_Walk]:
    """Children of a vertex in an order whose two ends are near to it."""
    walks = [walk if walk.first <= walk.last else walk.turned() for walk in reversed(walks)]
    if len(walks) < 2 or _alike(walks):
        return walks
    first, last, *others = sorted(walks, key=lambda walk: (walk.first, walk.last))
    return [first, *_take_turns(others), last.turned()]


def _take_turns(walks: list[_Walk]) -> list[_Walk]:
    """Far, near, second farthest, second nearest: far ends are followed by near ones."""
    if len(walks) < 3 or _alike(walks):
        return walks
    ordered = sorted(walks, key=lambda walk: walk.first)
    half = len(ordered) // 2
    near, far = ordered[:half], ordered[half:]
    turns = [walk for pair in zip(reversed(far), near, strict=False) for walk in pair]
    return turns + far[: len(far) - half]


def _joined(walks: Sequence[_Walk]) -> _Walk:
    if len(walks) == 1:
        return walks[0]
    return _Walk([host for walk in walks for host in walk.hosts], walks[0].first, walks[-1].last)
