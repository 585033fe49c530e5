"""What every rank does in every ring step: pairs, bytes, pieces. Counted by the functions that a run itself uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.itinerary import Itinerary, plan_itinerary
from ringmpi.core.pair_counts import PairCounter
from ringmpi.core.problem import Problem
from ringmpi.core.schedule import comes, homes, last_needed, times_sent
from ringmpi.core.sharding import shardings_by_name

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
    """

    pairs: Ints
    bytes_sent: Ints
    bytes_due: Ints
    pieces_due: Ints
    density: float
    itineraries: tuple[Itinerary, ...]

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
    home = homes(pieces)
    pairs, needed = _pairs(problem)
    last = last_needed(schedule, pieces, needed)
    takers = np.count_nonzero(needed, axis=0) - needed[home[0], np.arange(len(pieces))]
    nbytes = np.array([piece.length for piece in pieces], np.int64) * key_bytes(problem)
    due = np.empty((size, size), np.int64)
    pieces_due, sent = np.zeros((2, size), np.int64)
    for rank in range(size):
        step = schedule.step(*home, rank, size)
        travels = (comes(schedule, step, needed[rank], last) & (step > 0)).astype(np.int64)
        np.add.at(pieces_due, step, travels)
        due[rank] = 0
        np.add.at(due[rank], step, travels * nbytes)
        sent[rank] = times_sent(schedule, step, last, takers) @ nbytes
    itineraries = [plan_itinerary(schedule, pieces, needed, rank, donated=True, last=last) for rank in ranks]
    return PassTables(pairs, sent, due, pieces_due, _density(problem, pairs, due), tuple(itineraries))


def _pairs(problem: Problem) -> tuple[Ints, NDArray[np.bool_]]:
    """Pairs of each rank in each step [ranks, steps], and which piece it needs [ranks, pieces]."""
    size, home = problem.size, homes(problem.pieces)
    # Large tables are made empty and filled row by row: numpy puts them on huge pages, which zeros does not.
    pairs, needed = np.empty((size, size), np.int64), np.empty((size, len(problem.pieces)), np.bool_)
    for first in range(0, size, RANKS_AT_ONCE):
        some = range(first, min(first + RANKS_AT_ONCE, size))
        counts = problem.pair_counter.counts([problem.queries.shards[rank] for rank in some])
        np.greater(counts, 0, out=needed[first : some.stop])
        for rank, row in zip(some, counts, strict=True):
            pairs[rank] = 0
            np.add.at(pairs[rank], problem.schedule.step(*home, rank, size), row)
    return pairs, needed


def resharded(problem: Problem, name: str, size: int) -> Problem:
    """The same attention with another sharding, by name, or on another number of ranks."""
    queries, keys = shardings_by_name(name, problem.mask, problem.queries.length, problem.keys.length, size)
    return replace(problem, queries=queries, keys=keys)


def rank_loads(problem: Problem) -> Ints:
    """Pairs of each rank in the whole pass, int64 [ranks], for one head."""
    loads: Ints = PairCounter(problem.slices, [(range(problem.keys.length),)]).counts(problem.queries.shards)[:, 0]
    return loads


def imbalance(loads: Ints) -> float:
    """Largest over mean; 1 if all are 0."""
    return float(loads.max() / loads.mean()) if loads.any() else 1.0


def shares(problem: Problem, tables: PassTables, steps: int) -> NDArray[np.float64]:
    """Of all pairs that a rank's queries and the keys at hand could form, the share it attends to.

    Returns
    -------
    float64 [ranks, steps]
        Of the first `steps` steps; 0 where a rank has no queries, or no keys come to it.
    """
    rows = np.array([problem.queries.shard_length(rank) for rank in range(problem.size)], np.float64)
    lengths = np.array([piece.length for piece in problem.pieces], np.int64)
    possible = np.zeros((problem.size, steps))
    for step in range(steps):
        at = problem.schedule.visits(*homes(problem.pieces), step, problem.size).rank
        np.add.at(possible[:, step], at, lengths)
    possible *= rows[:, None]
    return np.divide(tables.pairs[:, :steps], possible, out=np.zeros_like(possible), where=possible > 0)


def _density(problem: Problem, pairs: Ints, due: Ints) -> float:
    """Of visiting keys; of the mask where none travel."""
    rows = np.array([problem.queries.shard_length(rank) for rank in range(problem.size)], np.float64)
    met, possible = float(pairs[:, 1:].sum()), float(due.sum(1) @ rows) / key_bytes(problem)
    if not possible:
        met, possible = float(pairs.sum()), float(problem.queries.length) * problem.keys.length
    return met / possible if possible else 0.0
