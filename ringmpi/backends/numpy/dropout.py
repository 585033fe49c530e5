"""Dropout of one tile: a factor for every weight, 0 or 1 / (1 - dropout)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ringmpi.backends.numpy.scores import Scratch
from ringmpi.backends.numpy.tiles import Tile
from ringmpi.core.dropout import KEYS_A_COUNTER, keep_four
from ringmpi.core.partial import Array
from ringmpi.core.scoring import Scoring
from ringmpi.core.work import Ints

COUNTERS_AT_ONCE = 1 << 13  # 64 KiB an array: the rounds of Philox stay in a second-level cache


@dataclass(frozen=True)
class Dropout:
    """The dropout of some heads.

    scoring  Scoring                    dropout > 0
    batch    int64 [batch]              their batch indices
    heads    int64 [key_heads, group]   their query heads
    """

    scoring: Scoring
    batch: Ints
    heads: Ints

    def factors(self, tile: Tile, dtype: np.dtype[Any], scratch: Scratch) -> Array:
        """What to multiply the weights [batch, key_heads, keys, group, rows] of a tile with. In scratch."""
        rows, keys = tile.positions()
        quads, quad = np.unique(keys // KEYS_A_COUNTER, return_inverse=True)
        batch, key_heads, group = len(self.batch), *self.heads.shape
        shape = (batch, key_heads, len(quads), KEYS_A_COUNTER, group, len(rows))
        kept = scratch.take("kept", shape, np.dtype(np.bool_))
        height = max(COUNTERS_AT_ONCE // (batch * self.heads.size * len(rows)), 1)
        for start in range(0, len(quads), height):
            part = slice(start, start + height)
            four = keep_four(
                self.scoring,
                rows,
                quads[part, None, None],
                self.heads[:, None, :, None],
                self.batch[:, None, None, None, None],
            )
            for word, keep in enumerate(four):
                kept[:, :, part, word] = keep
        factors = scratch.take("factors", (batch, key_heads, len(keys), group, len(rows)), dtype)
        scale = dtype.type(1 / (1 - self.scoring.dropout))
        np.multiply(kept[:, :, quad, keys % KEYS_A_COUNTER], scale, out=factors)
        return factors
