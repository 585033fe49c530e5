"""The keys that chosen rows give most weight to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.analysis.map_chart import draw_top_keys
from ringmpi.analysis.opened import Source, chosen_slabs, head_names, opened, recorded
from ringmpi.analysis.tables import Table
from ringmpi.plotting import LIGHT, Style
from ringmpi.storage.record_layout import TOP_KEYS, TOP_ROWS, TOP_WEIGHTS


@dataclass(frozen=True, eq=False)
class TopKeys:
    """Of each chosen row, its keys by descending weight.

    Attributes
    ----------
    path : str
    heads : tuple of str [slabs]
    rows : int64 [rows], positions
        Of the queries.
    keys : int64 [slabs, rows, k], positions
        -1 where the row has fewer keys, and where it has met NaN.
    weights : float64 [slabs, rows, k]
        0 where the row has fewer keys, NaN where it has met NaN.
    """

    path: str
    heads: tuple[str, ...]
    rows: NDArray[np.int64]
    keys: NDArray[np.int64]
    weights: NDArray[np.float64]

    @property
    def caption(self) -> str:
        """What the picture shows, and how to read it."""
        return (
            f"The {self.keys.shape[2]} keys with the largest weights of each chosen query: position of the key over "
            f"position of the query. Larger marks are larger weights; marks on the diagonal are the query itself."
        )

    def table(self) -> Table:
        """One row for each key."""
        rows = [
            (self.heads[h], int(self.rows[i]), n, int(self.keys[h, i, n]), float(self.weights[h, i, n]))
            for h, i, n in np.argwhere(self.keys >= 0).tolist()
        ]
        return Table(("head", "query", "place", "key", "weight"), rows)

    def plot(self, axes: Any = None, *, slab: int = 0, style: Style = LIGHT) -> Any:
        """Draw the keys of one slab.

        Returns
        -------
        matplotlib Axes
            `axes`, or those of a new Figure.

        Raises
        ------
        ConfigError
            If matplotlib is not installed.
        """
        return draw_top_keys(self.rows, self.keys[slab], self.weights[slab], self.heads[slab], axes, style)


def top_keys(source: Source, slab: int | None = None) -> TopKeys:
    """The keys with the largest weights of the rows that [record] top_rows has named.

    Parameters
    ----------
    source : path or Results
    slab : int or None
        The head of a batch entry, counted over all of them; None: all.

    Raises
    ------
    NotRecordedError
        If the run has not recorded them.
    ConfigError
        If there is no such slab.
    StorageError
        If the file is missing, damaged, or not a ringmpi output.
    """
    with opened(source) as results:
        names = head_names(results)
        slabs = chosen_slabs(slab, names)
        rows, keys, weights = (recorded(results, path) for path in (TOP_ROWS, TOP_KEYS, TOP_WEIGHTS))
        found = keys.read(slabs)
        heavy = weights.read(slabs).astype(np.float64)
        heavy = np.where((found >= 0) | np.isnan(heavy), heavy, 0.0)
        return TopKeys(str(results.path), names[slabs], rows.read(slice(None)), found, heavy)
