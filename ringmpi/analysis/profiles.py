"""What was recorded of each row, or of each key, over its position: mean and quantiles of bins, exact, in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.analysis.opened import Source, bounds, head_names, opened, recorded, rows_that_see_keys
from ringmpi.analysis.profile_chart import Spread, draw_head, draw_heads
from ringmpi.analysis.tables import Table
from ringmpi.plotting import LIGHT, Style
from ringmpi.storage.record_layout import KEYS_ATTRIBUTE, RECORD
from ringmpi.storage.recorded import RecordedArray
from ringmpi.storage.results import Results

BINS = 256
LEVELS = (0.1, 0.5, 0.9)
PIECE_ELEMENTS = 1 << 22  # of an array that is read at once: 32 MiB


@dataclass(frozen=True, eq=False)
class Profile:
    """A recorded quantity over position, for each slab (a head of a batch entry).

    Attributes
    ----------
    path : str
    name : str
        "entropy", "distance", "sinks" or "received".
    unit : str
        "nats", "positions", "weight".
    heads : tuple of str [slabs]
    edges : int64 [bins + 1], positions
        Bin b has the positions edges[b] to edges[b + 1] - 1; equal lengths, or one apart.
    rows : int64 [slabs, bins]
        Rows of the bin that see a key. Others have no weights, and are left out of all that follows. Of "received":
        keys, all of them.
    mean : float64 [slabs, bins], units of `unit`
        nan where no row counts.
    levels : tuple of float
    quantiles : float64 [slabs, levels, bins], units of `unit`
        Linear between neighbours, as NumPy's default; nan where no row counts.
    overall : float64 [slabs], units of `unit`
        Mean over all rows.
    keys : int or None
        Of "sinks": how many first keys.
    """

    path: str
    name: str
    unit: str
    heads: tuple[str, ...]
    edges: NDArray[np.int64]
    rows: NDArray[np.int64]
    mean: NDArray[np.float64]
    levels: tuple[float, ...]
    quantiles: NDArray[np.float64]
    overall: NDArray[np.float64]
    keys: int | None = None

    @property
    def label(self) -> str:
        """The quantity with its unit, for an axis."""
        labels = {
            "entropy": "entropy of the weights, nats",
            "distance": "mean distance, positions",
            "sinks": f"weight on the first {self.keys} keys",
            "received": "weight that a key receives",
        }
        return labels[self.name]

    @property
    def caption(self) -> str:
        """What the picture shows, and how to read it."""
        captions = {
            "entropy": "Entropy of each query's weights over the position of the query, in nats. exp(entropy) is about "
            "how many keys a query looks at: 0 is one key alone.",
            "distance": "Mean distance from a query to the keys that it gives weight to, in positions, over the "
            "position of the query. Low and flat is a head that attends to nearby keys.",
            "sinks": f"Weight that a query gives to the first {self.keys} keys of the whole sequence together, over "
            "the position of the query; 1 is all of it. A high line is a head that attends to the beginning. With "
            "documents it is 0 for queries of documents that do not hold these keys.",
            "received": "Weight that a key receives from all queries together, over the position of the key. The "
            "weights of one query sum to 1; peaks are keys that many queries look at.",
        }
        return captions[self.name]

    def table(self) -> Table:
        """One row for each head and bin."""
        quantiles = tuple(f"q{round(100 * level)}" for level in self.levels)
        columns = ("head", "start", "stop", "rows", "mean", *quantiles)
        rows = [
            (name, int(self.edges[b]), int(self.edges[b + 1]), int(self.rows[h, b]), float(self.mean[h, b]), *levels)
            for h, name in enumerate(self.heads)
            for b, levels in enumerate(self.quantiles[h].T.tolist())
        ]
        return Table(columns, rows)

    def plot(self, axes: Any = None, *, slab: int | None = None, style: Style = LIGHT) -> Any:
        """Draw all heads and their mean, or one slab with the band between its outer quantiles.

        Returns
        -------
        matplotlib Axes
            `axes`, or those of a new Figure.

        Raises
        ------
        ConfigError
            If matplotlib is not installed.
        """
        labels = f"position of the {'key' if self.name == 'received' else 'query'}", self.label
        if slab is None:
            return draw_heads(self.edges, self.heads, self.mean, labels, axes, style)
        low, high = self.quantiles[slab, 0], self.quantiles[slab, -1]
        rows = Spread(self.mean[slab], low, high, (self.levels[0], self.levels[-1]))
        return draw_head(self.edges, self.heads[slab], rows, labels, axes, style)


def entropy(source: Source, *, bins: int = BINS) -> Profile:
    """Entropy -sum p log p of the weights of each query, nats, over the position of the query.

    Parameters
    ----------
    source : path or Results
        An output of a run with [record] rows = true.
    bins : int
        At most this many; with fewer positions each is its own bin.

    Raises
    ------
    NotRecordedError
        If the run has not recorded it.
    StorageError
        If the file is missing, damaged, or not a ringmpi output.
    """
    return _profile(source, "entropy", "nats", bins)


def distance(source: Source, *, bins: int = BINS) -> Profile:
    """Mean distance sum p |i - j| of each query to its keys, positions; otherwise as `entropy`."""
    return _profile(source, "distance", "positions", bins)


def sinks(source: Source, *, bins: int = BINS) -> Profile:
    """Weight of each query on the first keys, as many as [record] sinks said; otherwise as `entropy`."""
    return _profile(source, "sinks", "weight", bins)


def received(source: Source, *, bins: int = BINS) -> Profile:
    """Weight that each key receives from all queries, over the position of the key ([record] received = true)."""
    return _profile(source, "received", "weight", bins)


def _profile(source: Source, name: str, unit: str, bins: int) -> Profile:
    with opened(source) as results:
        array = recorded(results, f"{RECORD}/{name}")
        edges, heads = bounds(array.shape[1], bins), head_names(results)
        shape = (len(heads), len(edges) - 1)
        count, sums = np.zeros(shape, np.int64), np.zeros(shape)
        quantiles = np.full((len(heads), len(LEVELS), shape[1]), np.nan)
        for slabs, places, values, counts in _pieces(results, array, edges, per_row=name != "received"):
            for b in range(places.start, places.stop):
                part = slice(edges[b] - edges[places.start], edges[b + 1] - edges[places.start])
                count[slabs, b] = counts[:, part].sum(axis=1)
                sums[slabs, b] = values[:, part].sum(axis=1, where=counts[:, part])
                quantiles[slabs, :, b] = _quantiles(values[:, part], counts[:, part])
        with np.errstate(invalid="ignore"):
            mean, overall = sums / count, sums.sum(axis=1) / count.sum(axis=1)
        keys = array.number(KEYS_ATTRIBUTE) if name == "sinks" else None
        return Profile(str(results.path), name, unit, heads, edges, count, mean, LEVELS, quantiles, overall, keys=keys)


def _pieces(
    results: Results, array: RecordedArray, edges: NDArray[np.int64], *, per_row: bool
) -> Iterator[tuple[slice, slice, NDArray[np.float64], NDArray[np.bool_]]]:
    """Some slabs and whole bins at a time, a bin of a slab at least: their numbers, and which of them count."""
    slabs, bins = array.shape[0], len(edges) - 1
    longest = max(int(np.diff(edges).max()), 1)
    slab_step = max(1, min(slabs, PIECE_ELEMENTS // longest))
    bin_step = max(1, PIECE_ELEMENTS // (longest * slab_step))
    sees, test = rows_that_see_keys(results) if per_row else (None, None)
    for first in range(0, slabs, slab_step):
        chosen = slice(first, min(first + slab_step, slabs))
        for start in range(0, bins, bin_step):
            places = slice(start, min(start + bin_step, bins))
            rows = slice(int(edges[places.start]), int(edges[places.stop]))
            values = array.read(chosen, rows).astype(np.float64)
            counts = np.ones(values.shape, np.bool_)
            if sees is not None and test is not None:
                counts = test(sees.read(chosen, rows)) | np.isnan(values)
            yield chosen, places, values, counts


def _quantiles(values: NDArray[np.float64], counts: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Of each slab, over those that count: [slabs, rows] to [slabs, levels]."""
    if counts.all() and values.shape[1]:
        return np.asarray(np.quantile(values, LEVELS, axis=1).T)
    rows = [found[chosen] for found, chosen in zip(values, counts, strict=True)]
    nothing = np.full(len(LEVELS), np.nan)
    return np.array([np.quantile(row, LEVELS) if len(row) else nothing for row in rows])
