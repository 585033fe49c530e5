"""Pictures of who looks at whom: the map of a head, and the top keys of chosen rows."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.plotting import TEXT_POINTS, Style, dress, new_axes

Weights = NDArray[np.float64]
Positions = NDArray[np.int64]

MAP_HEIGHT = 3.7  # inches: about square, with its colour bar beside it
DECADES = 4  # of weights that colours tell apart
SMALLEST, LARGEST = 6.0, 70.0  # areas of marks, square points


def draw_map(weights: Weights, query_edges: Positions, key_edges: Positions, head: str, axes: Any, style: Style) -> Any:
    """Weights as colours on a logarithmic scale, what gets no weight left empty; gives the axes.

    weights : float64 [query_cells, key_cells]
    query_edges, key_edges : int64 [cells + 1], positions
    """
    axes = new_axes(height=MAP_HEIGHT) if axes is None else axes
    there = weights > 0  # not where it is nan
    most = float(weights.max(initial=0, where=there)) or 1.0
    scale = import_module("matplotlib.colors").LogNorm(most * 10.0**-DECADES, most, clip=True)
    shown = np.ma.masked_where(~there, weights)
    mesh = axes.pcolormesh(
        key_edges, query_edges, shown, norm=scale, cmap=style.colormap, shading="flat", rasterized=True
    )
    axes.invert_yaxis()
    dress(axes, style, x="position of the key", y="position of the query")
    bar = axes.figure.colorbar(mesh, ax=axes, fraction=0.05, pad=0.02)
    bar.set_label(f"weight, {head}", color=style.ink, fontsize=TEXT_POINTS)
    bar.ax.tick_params(colors=style.ink, labelsize=TEXT_POINTS - 1)
    bar.outline.set_visible(False)
    return axes


def draw_top_keys(rows: Positions, keys: Positions, weights: Weights, head: str, axes: Any, style: Style) -> Any:
    """A mark for each key, its area by its weight; gives the axes.

    rows : int64 [rows], positions of the queries
    keys, weights : int64 and float64 [rows, k]; a key of -1 is none
    """
    axes = new_axes() if axes is None else axes
    there = keys >= 0
    queries = np.broadcast_to(rows[:, None], keys.shape)
    areas = SMALLEST + (LARGEST - SMALLEST) * weights[there]
    axes.scatter(queries[there], keys[there], s=areas, color=style.accent, alpha=0.6, linewidths=0)
    dress(axes, style, x="position of the query", y=f"position of the key, {head}", grid="both")
    return axes
