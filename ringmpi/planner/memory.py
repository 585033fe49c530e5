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


@dataclass(frozen=True)
class KVCache:
    """Keys and values of a whole model, kept for all positions and spread over the ranks.

    token_bytes : bytes of one position
    tokens, ranks : how many positions, on how many ranks
    """

    token_bytes: int
    tokens: int
    ranks: int = 1

    @property
    def total(self) -> int:
        """Bytes on all ranks together."""
        return self.token_bytes * self.tokens

    @property
    def share(self) -> int:
        """Bytes of the rank that holds most."""
        return self.token_bytes * -(-self.tokens // self.ranks)

    def tokens_in(self, memory: float) -> int:
        """Positions that fit in some bytes."""
        return int(memory // self.token_bytes)


def kv_cache(problem: Problem, layers: int = 1) -> KVCache:
    """The KV cache of `layers` layers like this one."""
    heads = problem.heads
    token = heads.batch * heads.key_heads * (heads.head_dim + heads.value_dim) * problem.dtype.itemsize
    return KVCache(token * layers, problem.keys.length, problem.size)


def score_bytes(problem: Problem) -> int:
    """Bytes of the scores of one head, which are never stored: queries x keys numbers of the input's dtype."""
    return problem.queries.length * problem.keys.length * problem.dtype.itemsize
