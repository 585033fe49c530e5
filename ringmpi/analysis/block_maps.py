"""The attention map that a run has recorded: weights between blocks of positions, and exactly coarser ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ringmpi.analysis.map_chart import draw_map
from ringmpi.analysis.opened import (
    Source,
    chosen_slabs,
    head_names,
    key_length_of,
    opened,
    recorded,
    rows_that_see_keys,
)
from ringmpi.analysis.tables import Table
from ringmpi.errors import ConfigError
from ringmpi.plotting import LIGHT, Style
from ringmpi.storage.record_layout import BLOCK_ATTRIBUTE, RECORDED_MAP
from ringmpi.storage.recorded import RecordedArray
from ringmpi.storage.results import Results

CELLS = 256
MEAN = "mean"
COLUMNS = ("head", "query_start", "query_stop", "key_start", "key_stop", "weight")  # of a table


@dataclass(frozen=True, eq=False)
class RecordedMap:
    """Weight that an average row of a query cell gives to the keys of a key cell.

    Attributes
    ----------
    path : str
    heads : tuple of str [slabs]
        Heads of all batch entries; or the one, or "mean of all heads", that was asked for.
    weights : float64 [slabs, query_cells, key_cells]
        Rows sum to 1, or to what a sink logit has left; to 0 where no row of the cell sees a key.
    query_edges : int64 [query_cells + 1], positions
        Cell n has the positions query_edges[n] to query_edges[n + 1] - 1.
    key_edges : int64 [key_cells + 1], positions
    block : int
        Positions of the blocks that were recorded. A cell is one or more of them.
    """

    path: str
    heads: tuple[str, ...]
    weights: NDArray[np.float64]
    query_edges: NDArray[np.int64]
    key_edges: NDArray[np.int64]
    block: int

    @property
    def caption(self) -> str:
        """What the picture shows, and how to read it."""
        positions = int(np.diff(self.query_edges).max(initial=0))
        return (
            f"Weight that an average query of {positions:,} positions (down) gives to {positions:,} positions of keys "
            f"(across); each row sums to 1, and colours are logarithmic. A bright diagonal is a head that attends "
            f"nearby, a bright left edge one that attends to the beginning; empty cells get no weight."
        )

    def table(self) -> Table:
        """One row for each cell that gets any weight."""
        query, key = self.query_edges.tolist(), self.key_edges.tolist()
        rows = [
            (self.heads[h], query[i], query[i + 1], key[j], key[j + 1], float(self.weights[h, i, j]))
            for h, i, j in np.argwhere(self.weights != 0).tolist()
        ]
        return Table(COLUMNS, rows)

    def plot(self, axes: Any = None, *, slab: int = 0, style: Style = LIGHT) -> Any:
        """Draw the map of one slab.

        Returns
        -------
        matplotlib Axes
            `axes`, or those of a new Figure.

        Raises
        ------
        ConfigError
            If matplotlib is not installed.
        """
        return draw_map(self.weights[slab], self.query_edges, self.key_edges, self.heads[slab], axes, style)


def recorded_map(source: Source, slab: int | Literal["mean"] | None = None, *, cells: int = CELLS) -> RecordedMap:
    """The recorded map, of at most `cells` a side: blocks are put together where there are more.

    To put query blocks together is to average over their rows that see a key, so the coarser map is exact too.

    Parameters
    ----------
    source : path or Results
        An output of a run with [record] map_block.
    slab : int, "mean" or None
        The head of a batch entry, counted over all of them; the mean over all; None: all, in memory that grows with
        slabs x cells^2.
    cells : int

    Raises
    ------
    NotRecordedError
        If the run has not recorded a map; or has not recorded which rows see a key, where that is needed.
    ConfigError
        If there is no such slab.
    StorageError
        If the file is missing, damaged, or not a ringmpi output.
    """
    if cells < 1:
        raise ConfigError(f"cells = {cells}: expected a whole number >= 1. Leave it out for {CELLS}.")
    if isinstance(slab, str) and slab != MEAN:
        raise ConfigError(f'slab = "{slab}": expected the number of a slab, "{MEAN}", or None for all.')
    with opened(source) as results:
        array, names = recorded(results, RECORDED_MAP), head_names(results)
        block = array.number(BLOCK_ATTRIBUTE) or 1
        factor = max(1, -(-max(array.shape[1:]) // cells))
        slabs = chosen_slabs(None if isinstance(slab, str) else slab, names)
        maps = (_coarse(results, array, each, block, factor) for each in range(slabs.start, slabs.stop))
        if slab == MEAN:
            names, weights = ("mean of all heads",), _mean(maps, len(names))[None]
        else:
            names, weights = names[slabs], np.stack(list(maps))
        keys = key_length_of(results) or array.shape[2] * block
        query_edges, key_edges = (_edges(length, block * factor) for length in (results.output.length, keys))
        return RecordedMap(str(results.path), names, weights, query_edges, key_edges, block)


def _mean(maps: Iterator[NDArray[np.float64]], count: int) -> NDArray[np.float64]:
    """Over so many maps; one at a time."""
    total = next(maps)
    for weights in maps:
        total += weights
    return total / count


def _edges(length: int, cell: int) -> NDArray[np.int64]:
    return np.minimum(np.arange(-(-length // cell) + 1, dtype=np.int64) * cell, length)


def _coarse(results: Results, array: RecordedArray, slab: int, block: int, factor: int) -> NDArray[np.float64]:
    """The map of one slab, `factor` blocks a cell; read a row of cells at a time."""
    rows, columns = array.shape[1:]
    starts = np.arange(0, columns, factor)
    found = np.zeros((-(-rows // factor), len(starts)))
    for cell, first in enumerate(range(0, rows, factor)):
        blocks = slice(first, min(first + factor, rows))
        weights = array.read(slice(slab, slab + 1), blocks)[0].astype(np.float64)
        if factor > 1:
            seeing = _rows_seeing_keys(results, slab, blocks, block)
            weights = (seeing @ weights)[None] / max(seeing.sum(), 1)
        found[cell] = np.add.reduceat(weights, starts, axis=1)[0]
    return found


def _rows_seeing_keys(results: Results, slab: int, blocks: slice, block: int) -> NDArray[np.int64]:
    """How many rows of each of these blocks see a key, int64 [blocks]."""
    array, test = rows_that_see_keys(results)
    sees = test(array.read(slice(slab, slab + 1), slice(blocks.start * block, blocks.stop * block))[0])
    return np.add.reduceat(sees, np.arange(0, len(sees), block), dtype=np.int64)
