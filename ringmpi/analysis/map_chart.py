"""Pictures of who looks at whom: the map of a head, and the top keys of chosen rows."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from ringmpi.plotting import TEXT_POINTS, Style, dress, new_axes

if TYPE_CHECKING:
    from ringmpi.analysis.block_maps import RecordedMap
    from ringmpi.analysis.top_keys_of_rows import TopKeys

MAP_HEIGHT = 3.7  # inches: about square, with its colour bar beside it
DECADES = 4  # of weights that colours tell apart
SMALLEST, LARGEST = 6.0, 70.0  # areas of marks, square points


def draw_map(found: RecordedMap, axes: Any, slab: int, style: Style) -> Any:
    """Weights as colours on a logarithmic scale, what gets no weight left empty; gives the axes."""
    axes = new_axes(height=MAP_HEIGHT) if axes is None else axes
    weights = found.weights[slab]
    there = weights > 0  # not where it is nan
    most = float(weights.max(initial=0, where=there)) or 1.0
    scale = import_module("matplotlib.colors").LogNorm(most * 10.0**-DECADES, most, clip=True)
    shown = np.ma.masked_where(~there, weights)
    mesh = axes.pcolormesh(
        found.key_edges, found.query_edges, shown, norm=scale, cmap=style.colormap, shading="flat", rasterized=True
    )
    axes.invert_yaxis()
    dress(axes, style, x="position of the key", y="position of the query")
    bar = axes.figure.colorbar(mesh, ax=axes, fraction=0.05, pad=0.02)
    bar.set_label(f"weight, {found.heads[slab]}", color=style.ink, fontsize=TEXT_POINTS)
    bar.ax.tick_params(colors=style.ink, labelsize=TEXT_POINTS - 1)
    bar.outline.set_visible(False)
    return axes


def draw_top_keys(found: TopKeys, axes: Any, slab: int, style: Style) -> Any:
    """A mark for each key, its area by its weight; gives the axes."""
    axes = new_axes() if axes is None else axes
    keys, weights = found.keys[slab], found.weights[slab]
    there = keys >= 0
    queries = np.broadcast_to(found.rows[:, None], keys.shape)
    areas = SMALLEST + (LARGEST - SMALLEST) * weights[there]
    axes.scatter(queries[there], keys[there], s=areas, color=style.accent, alpha=0.6, linewidths=0)
    dress(axes, style, x="position of the query", y=f"position of the key, {found.heads[slab]}", grid="both")
    return axes
