"""How much memory a rank needs, term by term, before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.itinerary import Itinerary
from ringmpi.core.problem import Problem


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank. Not in it: the interpreter and MPI (about 100 MB), and the kernel's scratch (a few MB).

    queries : its shard of q
    slots : keys and values, its own and visiting ones
    partial : row_max, row_sum, weighted_sum in the accumulation dtype; becomes the output where dtypes agree
    output : the cast output, where the dtype is narrower; by then the slots are free again
    """

    queries: int
    slots: int
    partial: int
    output: int

    @property
    def peak(self) -> int:
        """The most that is needed at once."""
        return self.queries + self.partial + max(self.slots, self.output)


def rank_memory(problem: Problem, itinerary: Itinerary) -> RankMemory:
    """The memory of the rank of `itinerary`, whose own keys and values lie in slots (as `ringmpi run` does)."""
    heads, item = problem.heads, problem.dtype.itemsize
    rows = heads.query_slabs * problem.queries.shard_length(itinerary.rank)
    wide = accumulate_dtype(problem.dtype)
    key_bytes = heads.batch * heads.key_heads * (heads.head_dim + heads.value_dim) * item
    return RankMemory(
        queries=rows * heads.head_dim * item,
        slots=sum(itinerary.slot_lengths) * key_bytes,
        partial=rows * (heads.value_dim + 2) * wide.itemsize,
        output=rows * heads.value_dim * item if wide != problem.dtype else 0,
    )
