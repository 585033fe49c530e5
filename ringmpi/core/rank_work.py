"""Where the mask meets the positions of one rank: the work of each visit, in local indices, a piece at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.pair_counts import PairCounter
from ringmpi.core.problem import Problem
from ringmpi.core.slices import Slices, clip_queries
from ringmpi.core.work import NO_WORK, Work, meet


class RankWork:
    """Where the mask meets the queries of one rank. Tables are built a piece at a time: memory stays small."""

    def __init__(self, problem: Problem, rank: int) -> None:
        self._problem, self._rank = problem, rank
        self._rows: list[tuple[range, int, Slices]] = []
        done = 0
        for rows in problem.queries.shards[rank]:
            self._rows.append((rows, done, clip_queries(problem.slices, rows[0], rows[-1] + 1)))
            done += len(rows)

    def table(self, piece: int) -> Work:
        """The work of this rank's queries with a piece, in local indices of the shard and of the piece's arrays."""
        tables, done = [NO_WORK], 0
        for keys in self._problem.pieces[piece].ranges:
            tables += [meet(slices, rows, keys, offset, done) for rows, offset, slices in self._rows]
            done += len(keys)
        return np.concatenate(tables)

    def pairs(self) -> NDArray[np.int64]:
        """Pairs with each piece, int64 [pieces], for one head."""
        pairs: NDArray[np.int64] = self._problem.pair_counter.counts([self._problem.queries.shards[self._rank]])[0]
        return pairs


class KeyWork:
    """Where the mask meets the keys of one rank, as queries travel: the mirror of `RankWork`."""

    def __init__(self, problem: Problem, rank: int) -> None:
        self._problem, self._shard = problem, problem.keys.shards[rank]

    def table(self, piece: int) -> Work:
        """The work of a piece of queries with this rank's keys, in local indices of the piece and of the shard."""
        tables, done = [NO_WORK], 0
        for rows in self._problem.query_pieces[piece].ranges:
            if len(rows):
                slices, offset = clip_queries(self._problem.slices, rows[0], rows[-1] + 1), 0
                for keys in self._shard:
                    tables.append(meet(slices, rows, keys, done, offset))
                    offset += len(keys)
            done += len(rows)
        return np.concatenate(tables)

    def pairs(self) -> NDArray[np.int64]:
        """Pairs with each piece, int64 [pieces], for one head."""
        ranges = [piece.ranges for piece in self._problem.query_pieces]
        pairs: NDArray[np.int64] = PairCounter(self._problem.slices, [self._shard]).counts(ranges)[:, 0]
        return pairs
