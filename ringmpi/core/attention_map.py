"""The attention map: the weight that blocks of queries give to blocks of keys, from what single keys receive.

With p_ij = e^(s_ij - log_sum_exp_i), rows i of query block c and keys j of key block b:

    mass_jc = sum_i p_ij        received_j = sum_c mass_jc        map_cb = sum_j mass_jc / rows of c that see a key

mass is the gradient of the values where a row of block c has the gradient 1 in column c and 0 in the others
(core/gradients.py, dV = p^T dO): so the kernels of the backward pass give it, and count its pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.shapes import HeadShape
from ringmpi.core.slices import HIGH, LOW, Q0, Q1, Slices, clip_queries, row_counts
from ringmpi.core.whole_numbers import whole_number
from ringmpi.errors import ShapeError

Array = NDArray[Any]
Ints = NDArray[np.int64]
Sums = NDArray[np.float64]

MOST_ENTRIES = 1 << 28  # of a map: 1 GiB in float32
ROWS_AT_ONCE = 1 << 20  # of which keys are counted together


def block_count(length: int, block: int) -> int:
    """Blocks of so many positions; the last one may have fewer."""
    return -(-length // block)


def check_block(heads: HeadShape, queries: int, keys: int, block: int) -> int:
    """`block` as an int; ShapeError where there can be no such map, or it would be too large for one rank.

    Parameters
    ----------
    heads : HeadShape
    queries, keys : int
        Lengths of the sequences.
    block : int
        Positions of a block.
    """
    if (positions := whole_number(block, 1)) is None:
        raise ShapeError(
            f"a map of blocks of {block!r:.60} positions was requested; expected a whole number >= 1, at most 2^53."
        )
    rows, columns = block_count(queries, positions), block_count(keys, positions)
    if heads.query_slabs * rows * columns > MOST_ENTRIES:
        raise ShapeError(
            f"a map in blocks of {positions:,} positions has {heads.query_slabs:,} heads x {rows:,} x {columns:,} "
            f"entries; at most {MOST_ENTRIES:,} are kept. Use larger blocks."
        )
    return positions


@dataclass(frozen=True)
class RowGroup:
    """Consecutive local rows of a few query blocks.

    Attributes
    ----------
    start, stop : int
        Local rows.
    blocks : int64 [columns]
        Query blocks that they belong to, ascending.
    column : int64 [rows]
        Which of `blocks` each row belongs to.
    """

    start: int
    stop: int
    blocks: Ints
    column: Ints

    def marks(self, dtype: np.dtype) -> Array:
        """[rows, columns]: 1 in the column of the block of a row, else 0."""
        marks: Array = (self.column[:, None] == np.arange(len(self.blocks))).astype(dtype)
        return marks


def row_groups(block_of: Ints, start: int, stop: int, columns: int) -> Iterator[RowGroup]:
    """The local rows start <= u < stop in groups of at most `columns` query blocks.

    Parameters
    ----------
    block_of : int64 [rows]
        Query block of each local row, ascending.
    """
    inside = block_of[start:stop]
    firsts = np.flatnonzero(np.diff(inside, prepend=-1))
    edges = np.append(firsts[::columns], len(inside))
    for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        blocks, column = np.unique(inside[first:end], return_inverse=True)
        yield RowGroup(start + first, start + end, blocks, column)


class MapSums:
    """What the keys of one rank receive, summed in float64.

    Parameters
    ----------
    heads : HeadShape
    keys : int64 [keys]
        Ascending positions of these keys.
    queries : int
        Length of the sequence of queries.
    block : int or None
        Positions of a block; None: no map, only what each key receives.

    Attributes
    ----------
    received : float64 [batch, query_heads, keys]
    key_blocks : int64 [own]
        Blocks in which these keys lie, ascending; few where the rank has runs of positions.
    blocks : float64 [batch, query_heads, query blocks, own]
        Weight that all rows of a query block together give to keys of this rank; no query blocks where block is None.
    """

    def __init__(self, heads: HeadShape, keys: Ints, queries: int, block: int | None) -> None:
        rows = 0 if block is None else block_count(queries, block)
        self.key_blocks, self._column = np.unique(keys // block if block else keys[:0], return_inverse=True)
        self.received: Sums = np.zeros((heads.batch, heads.query_heads, len(keys)))
        self.blocks: Sums = np.zeros((heads.batch, heads.query_heads, rows, len(self.key_blocks)))

    def add(self, heads: slice, keys: slice, query_blocks: Ints, mass: Array) -> None:
        """Add what some local keys have received from the rows of some query blocks.

        Parameters
        ----------
        heads : slice of query heads
        keys : slice of local keys
        query_blocks : int64 [columns]
        mass : array [batch, heads, keys, columns]
        """
        wide = mass.astype(np.float64)
        self.received[:, heads, keys] += wide.sum(-1)
        if not self.blocks.size or not wide.size:
            return
        column = self._column[keys]
        firsts = np.flatnonzero(np.diff(column, prepend=-1))
        by_block = np.add.reduceat(wide, firsts, axis=2).swapaxes(-1, -2)
        own = self.blocks[:, heads, :, column[0] : column[-1] + 1]
        own[:, :, query_blocks] += by_block


def rows_with_keys(slices: Slices, length: int, block: int) -> Ints:
    """How many rows of each query block see any key, int64 [query blocks].

    Parameters
    ----------
    slices : int64 [n, 6]
        A resolved mask.
    length : int
        Length of the sequence of queries.
    block : int
        Positions of a block.
    """
    counts = np.zeros(block_count(length, block), np.int64)
    for start in range(0, length, ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, length)
        window = clip_queries(slices, start, stop)
        window[:, [Q0, Q1]] -= start
        window[:, [LOW, HIGH]] += start
        seen = np.flatnonzero(row_counts(window, stop - start)) + start
        counts += np.bincount(seen // block, minlength=len(counts))
    return counts


def check_sums(blocks: Sums, most: float, *, finite: bool) -> None:
    """ShapeError where rows of a map sum to more than weights can: log_sum_exp is of another question.

    Parameters
    ----------
    blocks : float64 [batch, query_heads, query blocks, key blocks]
        The map.
    most : float
        What a row may sum to (`tolerance.most_of_weights`).
    finite : bool
        Whether nothing that was given is NaN or inf: else sums that are not finite say nothing.
    """
    sums = blocks.sum(-1)
    wrong = sums > most if finite else (sums > most) & np.isfinite(sums)
    if wrong.any():
        batch, head, block = np.unravel_index(int(np.where(wrong, sums, -np.inf).argmax()), sums.shape)
        raise ShapeError(
            f"log_sum_exp does not belong to these queries and keys: weights of block {block}, head {head}, batch "
            f"entry {batch} sum to {sums[batch, head, block]:.6g}, not to 1. Give the log_sum_exp that `attention` "
            f"returned with the same mask, scale, softcap and alibi_slopes."
        )


def averaged(sums: Sums, rows: Ints) -> Sums:
    """The map: sums [..., query blocks, key blocks] over the rows of each query block that see a key; 0 without any."""
    mean: Sums = sums / np.maximum(rows, 1)[:, None]
    return mean
