"""Work items by the blocks of rows that they touch: what tells a block of threads which keys to look at."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.ranges import expand
from ringmpi.core.work import ROW_START, ROW_STOP, Work, key_bounds


class BlockLists(NamedTuple):
    """Lists of items, one a block of rows.

    items  int32 [n]           items of the first block in table order, then those of the second one, ...
    first  int32 [blocks + 1]  where the list of each block starts
    order  int32 [m]           blocks that have items, the one with the most work first
    """

    items: NDArray[np.int32]
    first: NDArray[np.int32]
    order: NDArray[np.int32]


def block_lists(work: Work, rows: int, height: int) -> BlockLists:
    """The items of each block of `height` rows; `rows` local rows in all."""
    blocks = -(-rows // height)
    item, block = expand(work[:, ROW_START] // height, (work[:, ROW_STOP] - 1) // height + 1)
    by_block = np.argsort(block, kind="stable")
    item, block = item[by_block], block[by_block]
    first = np.searchsorted(block, np.arange(blocks + 1))
    spans = _keys_met(work[item], block * height, height)
    load = np.bincount(block, weights=spans, minlength=blocks)
    order = np.argsort(-load, kind="stable")[: np.count_nonzero(load)]
    return BlockLists(item.astype(np.int32), first.astype(np.int32), order.astype(np.int32))


def _keys_met(work: Work, top: NDArray[np.int64], height: int) -> NDArray[np.int64]:
    """Keys between the first and the last one that some row of the block sees."""
    start, _ = key_bounds(work, np.maximum(work[:, ROW_START], top))
    _, stop = key_bounds(work, np.minimum(work[:, ROW_STOP], top + height) - 1)
    met: NDArray[np.int64] = np.maximum(stop - start, 0)
    return met
