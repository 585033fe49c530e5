"""Attention dropout: which pairs are kept. A function of the pair alone, so every layout drops the same ones.

    keep(b, h, i, j)  =  word >= floor(dropout * 2^32),   word: number j mod 4 of Philox-4x32-10 at
                         counter (i, j div 4, h, b) under key seed

b, h: batch and query head; i, j: positions of query and key in the whole sequence. The weight of a kept pair is
multiplied by 1 / (1 - dropout), that of a dropped one by 0. Normaliser and log_sum_exp are those without dropout.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.philox import philox_4x32
from ringmpi.core.scoring import Scoring
from ringmpi.core.whole_numbers import whole_number
from ringmpi.errors import ShapeError

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

KEYS_A_COUNTER = 4
WORDS = 1 << 32


def keep_four(scoring: Scoring, rows: Ints, quads: Ints, heads: Ints, batch: Ints) -> tuple[Bools, ...]:
    """Whether the pairs of `rows` with keys 4 quad, 4 quad + 1, 4 quad + 2 and 4 quad + 3 are kept.

    Parameters
    ----------
    scoring : Scoring
        dropout and seed.
    rows, quads, heads, batch : int64 arrays
        Positions of queries, positions of keys div 4, query heads and batch indices; shapes that broadcast.

    Returns
    -------
    four bool arrays, of the broadcast shape
    """
    least = np.uint64(int(scoring.dropout * WORDS))
    return tuple(word >= least for word in philox_4x32((rows, quads, heads, batch), scoring.seed))


def check_dropout(dropout: float, length: int) -> None:
    """ShapeError where `dropout` is no probability below 1, or sequences of `length` have no counters for it."""
    if not 0 <= dropout < 1:
        raise ShapeError(f"dropout is {dropout}; it must be at least 0 and below 1: the chance that a pair is dropped.")
    if dropout and length > WORDS:
        raise ShapeError(
            f"dropout is {dropout} and the longer side has {length:,} positions; the random numbers of dropout reach "
            f"{WORDS:,} positions. Use dropout = 0 or a shorter sequence."
        )


def check_seed(seed: object) -> int:
    """The seed as an int; ShapeError where it is no whole number of 64 bits."""
    largest = (1 << 64) - 1
    if (number := whole_number(seed, 0, largest)) is None:
        raise ShapeError(f"seed is {seed!r}; it must be a whole number from 0 to {largest}.")
    return number
