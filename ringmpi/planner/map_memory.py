"""How much memory a rank needs in the map pass, after the forward pass has left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringmpi.core.attention_map import block_count
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.itinerary import Itinerary
from ringmpi.core.problem import Problem
from ringmpi.core.record import record_bytes
from ringmpi.planner.memory import own_lengths

SUM_BYTES = 8  # float64


@dataclass(frozen=True)
class MapMemory:
    """Bytes of one rank in a map pass.

    rows : output, log_sum_exp and the record, until they are written
    inputs : queries and keys; where a backward pass follows, values and grad_output too
    copied : queries of its own that must be packed to travel
    slots : queries and log_sum_exp that visit
    sums : what its keys receive, and the map of its keys
    whole : on rank 0, the map of all keys, and what all of them receive
    """

    rows: int
    inputs: int
    copied: int
    slots: int
    sums: int
    whole: int

    @property
    def peak(self) -> int:
        """The most that is needed at once."""
        return self.rows + self.inputs + self.copied + self.slots + self.sums + self.whole


def map_memory(problem: Problem, itinerary: Itinerary, block: int | None, *, gradients: bool) -> MapMemory:
    """The memory of the rank of `itinerary`, that of the queries.

    Parameters
    ----------
    problem : Problem
        Of the forward pass.
    block : int or None
        Positions of a block of the map; None: only what each key receives.
    gradients : bool
        A backward pass follows.
    """
    rank, heads, item = itinerary.rank, problem.heads, problem.dtype.itemsize
    wide, slabs = accumulate_dtype(problem.dtype).itemsize, heads.query_slabs
    queries, keys = problem.queries.shard_length(rank), problem.keys.shard_length(rank)
    row = slabs * (heads.head_dim * item + wide)  # a query and its log_sum_exp
    output, key_slabs = slabs * heads.value_dim * item, heads.batch * heads.key_heads
    inputs = slabs * queries * heads.head_dim * item + key_slabs * keys * heads.head_dim * item
    if gradients:
        inputs += key_slabs * keys * heads.value_dim * item + queries * output
    own, blocks, width = 0, 0, SUM_BYTES + wide
    if block is not None:
        own = len(np.unique(problem.keys.positions(rank) // block))
        blocks = block_count(problem.queries.length, block)
    kept = output + slabs * (wide + (record_bytes(accumulate_dtype(problem.dtype)) if problem.record else 0))
    whole = slabs * (width * blocks * block_count(problem.keys.length, block or 1) + wide * problem.keys.length)
    return MapMemory(
        rows=queries * kept,
        inputs=inputs,
        copied=own_lengths(problem.query_pieces, itinerary, queries)[0] * row,
        slots=sum(itinerary.slot_lengths) * row,
        sums=slabs * SUM_BYTES * (keys + blocks * own),
        whole=whole if rank == 0 else 0,
    )
