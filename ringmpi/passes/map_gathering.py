"""From what the keys of each rank have received to whole arrays on rank 0, a slab at a time."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ringmpi.comm.agreement import LONG_WORK, Exchanges, on_first
from ringmpi.core.attention_map import MapSums, averaged, block_count, rows_with_keys
from ringmpi.core.problem import Problem

Array = NDArray[Any]
SLAB_BYTES = 64 << 20  # that arrive at rank 0 at once
GATHERING = "adding up the attention map"


class CollectingRing(Exchanges, Protocol):
    """A transport that also brings items to rank 0."""

    @property
    def size(self) -> int:
        """Ranks in the ring."""
        ...

    def collect(self, item: Any, during: str, *, patience: float = ...) -> list[Any]:
        """Every rank's item on rank 0, in ring order; an empty list elsewhere."""
        ...


def gather_map(ring: CollectingRing, problem: Problem, sums: MapSums, block: int) -> Array | None:
    """The whole map, float64 [batch, query_heads, query blocks, key blocks], on rank 0; None elsewhere. Collective.

    Ranks that share a block of keys are added up.
    """
    heads = problem.heads
    rows, columns = block_count(problem.queries.length, block), block_count(problem.keys.length, block)
    shape = heads.batch, heads.query_heads, rows, columns
    whole: Array | None = on_first(ring, GATHERING, lambda: np.zeros(shape))
    owned = ring.collect(sums.key_blocks, GATHERING, patience=LONG_WORK)
    height = _height(heads.query_slabs * columns * sums.blocks.itemsize * ring.size)
    for start in range(0, rows, height):
        slab = slice(start, start + height)
        parts = ring.collect(sums.blocks[:, :, slab], GATHERING, patience=LONG_WORK)
        if whole is not None:
            for own, part in zip(owned, parts, strict=True):
                whole[:, :, slab, own] += part

    def mean() -> Array | None:
        seen = rows_with_keys(problem.slices, problem.queries.length, block)
        return None if whole is None else averaged(whole, seen)

    return on_first(ring, GATHERING, mean)


def gather_received(ring: CollectingRing, problem: Problem, sums: MapSums, dtype: np.dtype) -> Array | None:
    """What every key receives, [batch, query_heads, keys] in `dtype`, on rank 0; None elsewhere. Collective."""
    heads, length = problem.heads, problem.keys.length
    whole = np.empty((heads.batch, heads.query_heads, length), dtype) if ring.rank == 0 else None
    height = _height(heads.batch * length * dtype.itemsize)
    for start in range(0, heads.query_heads, height):
        some = slice(start, start + height)
        parts = ring.collect(sums.received[:, some].astype(dtype), GATHERING, patience=LONG_WORK)
        if whole is not None:
            for rank, part in enumerate(parts):
                problem.keys.put(whole[:, some], part, rank)
    return whole


def _height(row_bytes: int) -> int:
    """How many rows of a slab, at least one."""
    return max(SLAB_BYTES // max(row_bytes, 1), 1)
