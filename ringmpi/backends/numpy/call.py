"""One call of a kernel: its arrays, cut in parts of heads and key tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.numpy.dropout import Dropout
from ringmpi.backends.numpy.scores import Scratch
from ringmpi.core.partial import Array
from ringmpi.core.scoring import Scoring
from ringmpi.core.shapes import HeadShape

Part = tuple[slice, slice, slice]  # of batch, key_heads, group


@dataclass(frozen=True)
class Call:
    """What forward and backward calls have in common; the arrays as in backends/base.py."""

    heads: HeadShape
    q: Array
    k: Array
    v: Array
    scoring: Scoring
    finite: bool

    def parts(self, count: int, within: slice) -> Iterator[Part]:
        """The key heads `within` in (batch, key_heads, group) parts of at most `count` query heads, at least one."""
        heads = self.heads
        group = min(count, heads.group)
        key_heads = max(count // heads.group, 1)
        batch = min(max(count // heads.query_heads, 1), heads.batch)
        for b in range(0, heads.batch, batch):
            for h in range(within.start, within.stop, key_heads):
                for g in range(0, heads.group, group):
                    yield slice(b, b + batch), slice(h, min(h + key_heads, within.stop)), slice(g, g + group)

    def widened(self, part: Part, keys: slice, dtype: np.dtype, scratch: Scratch) -> tuple[Array, Array]:
        """K and V of some heads and keys, contiguous in the accumulation dtype, once for all row tiles."""
        batch, key_heads, _ = part
        return (
            scratch.copy("key", self.k[batch, key_heads, keys], dtype),
            scratch.copy("value", self.v[batch, key_heads, keys], dtype),
        )

    def of_queries(self, array: Array, part: Part) -> Array:
        """A view of [batch, query_heads, ...] as [batch, key_heads, group, ...] (to split an axis never copies)."""
        heads = self.heads
        return array.reshape(heads.batch, heads.key_heads, heads.group, *array.shape[2:])[part]

    def slopes(self, part: Part) -> NDArray[np.float64] | None:
        """ALiBi slopes [key_heads, group] of a part."""
        slopes = self.scoring.alibi_slopes
        return None if slopes is None else slopes.reshape(-1, self.heads.group)[part[1:]]

    def dropout(self, part: Part) -> Dropout | None:
        """The dropout of a part; None where nothing is dropped."""
        if not self.scoring.dropout:
            return None
        heads = np.arange(self.heads.query_heads).reshape(-1, self.heads.group)
        return Dropout(self.scoring, np.arange(self.heads.batch)[part[0]], heads[part[1:]])
