"""Rings with short edges: local search from several starts, under several weights of long edges."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from ringmpi.topology.local_search import Rows, Tour
from ringmpi.topology.routes import Distances

NEIGHBOURS = 10  # cities, and those as near, that a move tries to join to a city
FEW = 40  # cities: here a move tries all of them
KICKS = 500_000  # over the number of cities; at most
KICKS_A_CITY = 40
MANY = 1_000  # cities: the first ring that no move shortens has to do
SEED = 1  # the search is the same each time
BYTE = 255


def short_rings(table: Distances, starts: Sequence[list[int]], *, dilation: int, hops: int) -> list[list[int]]:
    """Rings that are good in hops, and rings that are good in their longest edge.

    Parameters
    ----------
    table : array, [cities, cities], int
        Links between any two cities; at least five cities.
    starts : sequence of lists of int
        Rings to improve.
    dilation, hops : int
        What no ring over these cities can do without: the search stops when it is there.
    """
    lengths = np.arange(int(table.max()) + 1)
    if len(table) > MANY:
        weights = np.minimum(lengths + 8 * np.maximum(lengths - dilation, 0), BYTE)
        return [_searched(table, weights, starts, goal=hops)]
    scale = len(table) * len(lengths)
    rings = [_searched(table, lengths * scale + np.maximum(lengths - dilation, 0), starts, goal=hops * scale)]
    for limit in range(dilation, _longest(table, rings[0])):
        weights = lengths + scale * np.maximum(lengths - limit, 0)
        ring = _searched(table, weights, [rings[0], *starts], goal=hops)
        rings.append(ring)
        if _longest(table, ring) <= limit:
            break
    return rings


def _longest(table: Distances, ring: list[int]) -> int:
    return int(table[ring, np.roll(ring, -1)].max())


def _searched(table: Distances, weights: NDArray[np.int64], starts: Sequence[list[int]], *, goal: int) -> list[int]:
    """The best ring found where an edge of length d counts as `weights[d]`."""
    rows = _rows(table, weights)
    near = [_nearest(row, city) for city, row in enumerate(table)]
    best = Tour(starts[0], rows, near)
    best.improve(starts[0])
    for start in starts[1:]:
        if best.length > goal:
            tour = Tour(start, rows, near)
            tour.improve(start)
            best = min(best, tour, key=lambda each: each.length)
    if best.length > goal and len(table) <= MANY:
        _kick(best, goal=goal, times=min(KICKS // len(table), KICKS_A_CITY * len(table)))
    return best.order


def _rows(table: Distances, weights: NDArray[np.int64]) -> Rows:
    if weights.max() <= BYTE:
        small = weights.astype(np.uint8)
        return [small[row].tobytes() for row in table]
    rows: Rows = weights[table].tolist()
    return rows


def _nearest(row: Distances, city: int) -> list[int]:
    """The other cities, nearest first, of equal ones the lowest first; of many only the nearest."""
    limit = int(row.max())
    if len(row) > FEW:
        limit = int(np.partition(row, NEIGHBOURS)[NEIGHBOURS])
    near = np.flatnonzero(row <= limit)
    near = near[np.argsort(row[near], kind="stable")]
    return [int(each) for each in near[: 2 * NEIGHBOURS if len(row) > FEW else None] if each != city]


def _kick(tour: Tour, *, goal: int, times: int) -> None:
    """Leave the ring, improve again, and stay if that is no worse."""
    random = Random(SEED)
    kept, length = tour.order.copy(), tour.length
    for _ in range(times):
        tour.improve(tour.kick(random))
        if tour.length > length:
            tour.restore(kept.copy())
            continue
        kept, length = tour.order.copy(), tour.length
        if length <= goal:
            return
