"""Closed walks over boxes, meshes and tori that visit every place once, of any size and parity.

All of them come from one step: a cycle times a path is a cycle. Let row 0 be the way back; the other rows are an
even meander of columns, and both of its ends are neighbours of row 0, because the rows themselves form a cycle:

    0  <  <  <  <      row 0: the way back
    |  v  ^  v  |
    |  v  ^  v  |      rows 1 .. m - 1 of each column, down and up in turn
    |  v  >  v  |      (row m - 1 is a neighbour of row 0)

So a wrapped dimension, or two dimensions of which one is even, start a cycle that takes in every further dimension,
wrapped or not. A mesh with an odd number of places is bipartite and has no such cycle: there one edge takes two links,
which is the best (the longer edge closes the walk of the first two dimensions and is met once again in each product).
Gray codes, by contrast, close well only if their slowest digit has an even radix.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

Place = tuple[int, ...]


def closed_walk(shape: Sequence[int], wrap: Sequence[bool]) -> list[Place]:
    """Every place of a box once, in an order that goes along links.

    Parameters
    ----------
    shape : sequence of int
        Places along each dimension, each at least 1.
    wrap : sequence of bool
        Whether the last place of a dimension is linked to the first. With two places that link is there anyway.

    Returns
    -------
    list of tuple of int
        All steps, the closing one included, are one link long, if there is such a walk. Otherwise one step takes two
        links (an odd mesh), or steps of two links go out and come back (a line).
    """
    long = [axis for axis, size in enumerate(shape) if size > 1]
    cyclic = [axis for axis in long if wrap[axis] and shape[axis] > 2]
    even = [axis for axis in long if shape[axis] % 2 == 0]
    if cyclic:
        first = cyclic[:1]
        walk: list[Place] = [(i,) for i in range(shape[cyclic[0]])]
    elif len(long) < 2:
        first, walk = long, [(i,) for i in _line(prod(shape))] if long else [()]
    else:
        a = even[0] if even else long[0]
        first = [a, next(axis for axis in long if axis != a)]
        walk = list((_even_plane if even else _odd_plane)(shape[first[0]], shape[first[1]]))
    rest = [axis for axis in long if axis not in first]
    for axis in rest:
        walk = _times_path(walk, shape[axis])
    axes = [*first, *rest]
    return [tuple(place[axes.index(axis)] if axis in axes else 0 for axis in range(len(shape))) for place in walk]


def _line(n: int) -> list[int]:
    """Even places out, odd places back: no step is longer than two."""
    return [*range(0, n, 2), *range(n - 1 - n % 2, 0, -2)]


def _even_plane(a: int, b: int) -> list[tuple[int, int]]:
    """A mesh of a x b, a even: meander in columns 1 .. b - 1, back along column 0."""
    meander = [(i, j if i % 2 == 0 else b - j) for i in range(a) for j in range(1, b)]
    return meander + [(i, 0) for i in range(a - 1, -1, -1)]


def _odd_plane(a: int, b: int) -> list[tuple[int, int]]:
    """A mesh of a x b, both odd; the step from the last place to the first takes two links."""
    meander = [(i, j if i % 2 == 0 else b - j) for i in range(a - 2) for j in range(1, b)]
    zigzag = [(a - 2 + (j + i) % 2, j) for j in range(b - 1, 0, -1) for i in range(2)]
    return [(i, 0) for i in range(a - 1, -1, -1)] + meander + zigzag


def _times_path(cycle: list[Place], n: int) -> list[Place]:
    """The cycle over cycle x path of `n` places that the head of this module draws.

    If the closing step of `cycle` takes two links, one step of the result does, if `n` is odd, and none if it is even.
    """
    columns = [[(*place, j) for place in (cycle[1:] if j % 2 == 0 else cycle[:0:-1])] for j in range(n)]
    meander = [place for column in columns for place in column]
    walk = meander + [(*cycle[0], j) for j in range(n - 1, -1, -1)]
    return _closing_last(walk, cycle, n)


def _closing_last(walk: list[Place], cycle: list[Place], n: int) -> list[Place]:
    """`walk` turned so that the step over the closing step of `cycle`, if it is in there, closes the walk again."""
    if n % 2 == 0:
        return walk
    cut = walk.index((*cycle[0], n - 1))
    return walk[cut:] + walk[:cut]
