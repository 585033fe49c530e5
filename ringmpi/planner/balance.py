"""What every rank does in every ring step: pairs, bytes, pieces. Counted by the functions that a run itself uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.itinerary import Itinerary, plan_itinerary
from ringmpi.core.pair_counts import PairCounter
from ringmpi.core.problem import Problem
from ringmpi.core.schedule import distances, homes, plan_route, turn, turns
from ringmpi.core.sharding import shardings_by_name
from ringmpi.core.slices import total_pairs

Ints = NDArray[np.int64]
RANKS_AT_ONCE = 64


@dataclass(frozen=True)
class PassTables:
    """A pass in numbers.

    Attributes
    ----------
    pairs : int64 [ranks, steps]
        Attended to, for one head.
    bytes_sent : int64 [ranks]
        Keys and values in all steps, as the timeline of a run counts them.
    bytes_due : int64 [ranks, steps]
        Keys and values that must have landed when the step begins.
    pieces_due : int64 [steps]
        Pieces that travel for the step, over all ranks.
    density : float
        Of the pairs that visiting keys could form with the queries they visit, the share that the mask allows.
    itineraries : tuple of Itinerary
        Of the ranks that were asked for.
    bytes_back : int64 [ranks, steps] or None
        Of `bytes_due`, what travels to lower ring positions; None where nothing does, or it is not told apart.
    """

    pairs: Ints
    bytes_sent: Ints
    bytes_due: Ints
    pieces_due: Ints
    density: float
    itineraries: tuple[Itinerary, ...]
    bytes_back: Ints | None = None

    @property
    def steps(self) -> int:
        """Ring steps of the pass."""
        return int(self.pairs.shape[1])

    @property
    def imbalance(self) -> float:
        """Pairs of the busiest rank over their mean; 1 if there are none."""
        return imbalance(self.pairs.sum(1))


def key_bytes(problem: Problem) -> int:
    """Bytes of one position of keys and values, all heads."""
    heads = problem.heads
    return heads.batch * heads.key_heads * (heads.head_dim + heads.value_dim) * problem.dtype.itemsize


def read_pass(problem: Problem, ranks: Sequence[int] = ()) -> PassTables:
    """Count a whole pass, rank by rank.

    Parameters
    ----------
    ranks : sequence of int
        Whose itineraries are wanted.
    """
    schedule, pieces, size = problem.schedule, problem.pieces, problem.size
    pairs, needed, visiting = _pairs(problem)
    route, every = plan_route(schedule, pieces, needed), np.arange(len(pieces))
    if route.lead:
        pairs = np.pad(pairs, ((0, 0), (route.lead, 0)))
    takers = np.count_nonzero(needed, axis=0) - needed[route.owner, every]
    nbytes = np.array([piece.length for piece in pieces], np.int64) * key_bytes(problem)
    due, sent = np.empty((size, route.steps), np.int64), np.zeros(size, np.int64)
    pieces_due = np.zeros(route.steps, np.int64)
    back = np.zeros_like(due) if -1 in schedule.directions else None
    for rank in range(size):
        distance = route.distance(rank)
        come = np.flatnonzero(route.comes(distance, needed[rank]) & (distance > 0))
        lands = route.due(come, distance[come])
        np.add.at(pieces_due, lands, 1)
        due[rank] = 0
        np.add.at(due[rank], lands, nbytes[come])
        if back is not None:
            np.add.at(back[rank], lands, np.where(route.direction[come] < 0, nbytes[come], 0))
        sent[rank] = route.times_sent(distance, takers) @ nbytes
    itineraries = [plan_itinerary(schedule, pieces, needed, rank, donated=True, route=route) for rank in ranks]
    return PassTables(pairs, sent, due, pieces_due, _density(problem, visiting, due), tuple(itineraries), back)


def _pairs(problem: Problem) -> tuple[Ints, NDArray[np.bool_], int]:
    """Pairs of a rank in a turn [ranks, turns], whether it needs a piece [ranks, pieces], pairs with visiting keys."""
    visiting, size, pieces, schedule = 0, problem.size, len(problem.pieces), problem.schedule
    home, every = homes(problem.pieces), np.arange(pieces)
    # Large tables are made empty and filled row by row: numpy puts them on huge pages, which zeros does not.
    pairs, needed = np.empty((size, turns(schedule, pieces, size)), np.int64), np.empty((size, pieces), np.bool_)
    for first in range(0, size, RANKS_AT_ONCE):
        some = range(first, min(first + RANKS_AT_ONCE, size))
        counts = problem.pair_counter.counts([problem.queries.shards[rank] for rank in some])
        np.greater(counts, 0, out=needed[first : some.stop])
        for rank, row in zip(some, counts, strict=True):
            distance, pairs[rank] = distances(*home, rank, size), 0
            np.add.at(pairs[rank], turn(schedule, every, distance), row)
            visiting += int(row[distance > 0].sum())
    return pairs, needed, visiting


def resharded(problem: Problem, name: str, size: int) -> Problem:
    """The same attention with another sharding, by name, or on another number of ranks."""
    lengths = problem.queries.length, problem.keys.length
    queries, keys = shardings_by_name(name, problem.mask, *lengths, size, block=problem.queries.block)
    return replace(problem, queries=queries, keys=keys)


def rank_loads(problem: Problem) -> Ints:
    """Pairs of each rank in the whole pass, int64 [ranks], for one head."""
    loads: Ints = PairCounter(problem.slices, [(range(problem.keys.length),)]).counts(problem.queries.shards)[:, 0]
    return loads


def key_loads(problem: Problem) -> Ints:
    """Pairs of the keys of each rank, int64 [ranks], for one head: its load where keys stay, as in the map pass."""
    pieces = [problem.keys.shards[rank] for rank in range(problem.size)]
    loads: Ints = PairCounter(problem.slices, pieces).counts([(range(problem.queries.length),)])[0]
    return loads


def imbalance(loads: Ints) -> float:
    """Largest over mean; exactly 1 if all are equal."""
    total = sum(loads.tolist())  # of Python's integers: the mean of large ones, as a float, is rounded
    return int(loads.max()) * len(loads) / total if total else 1.0


def shares(problem: Problem, tables: PassTables, steps: int) -> NDArray[np.float64]:
    """Of all pairs that a rank's queries and the keys at hand could form, the share it attends to.

    Returns
    -------
    float64 [ranks, steps]
        Of the first `steps` steps; 0 where a rank has no queries, or no keys come to it.
    """
    rows = np.array([problem.queries.shard_length(rank) for rank in range(problem.size)], np.float64)
    lengths = np.array([piece.length for piece in problem.pieces], np.int64)
    possible, every, home = np.zeros((problem.size, steps)), np.arange(len(lengths)), homes(problem.pieces)
    lead = tables.steps - turns(problem.schedule, len(lengths), problem.size)
    for rank in range(problem.size):
        step = lead + turn(problem.schedule, every, distances(*home, rank, problem.size))
        soon = np.flatnonzero(step < steps)
        np.add.at(possible[rank], step[soon], lengths[soon])
    possible *= rows[:, None]
    return np.divide(tables.pairs[:, :steps], possible, out=np.zeros_like(possible), where=possible > 0)


def _density(problem: Problem, met: float, due: Ints) -> float:
    """Of visiting keys, which have `met` so many pairs; of the mask where none travel."""
    rows = np.array([problem.queries.shard_length(rank) for rank in range(problem.size)], np.float64)
    possible = float(due.sum(1) @ rows) / key_bytes(problem)
    if not possible:
        met, possible = float(total_pairs(problem.slices)), float(problem.queries.length) * problem.keys.length
    return met / possible if possible else 0.0
