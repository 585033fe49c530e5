"""Pictures of a quantity over position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.plotting import Style, add_legend, dress, new_axes

NAMED = 6  # heads that have a colour and a name each; of more only their mean has


@dataclass(frozen=True, eq=False)
class Spread:
    """How the rows of a head spread.

    Attributes
    ----------
    mean, low, high : float64 [bins]
        `low` and `high` are quantiles.
    levels : tuple of float
        Of these two.
    """

    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    levels: tuple[float, float]


def draw_heads(
    edges: NDArray[np.int64],
    heads: Sequence[str],
    means: NDArray[np.float64],
    labels: tuple[str, str],
    axes: Any,
    style: Style,
) -> Any:
    """A line for each head; of many heads their mean stands out; gives the axes.

    edges : int64 [bins + 1], positions
    means : float64 [heads, bins]
    labels : of the axes, x and y
    """
    axes, middles = new_axes() if axes is None else axes, _middles(edges)
    if len(heads) <= NAMED:
        for name, mean, color in zip(heads, means, style.series, strict=False):
            axes.plot(middles, mean, color=color, linewidth=1.3, label=name)
    else:
        for nth, mean in enumerate(means):
            label = "each head" if nth == 0 else None
            axes.plot(middles, mean, color=style.muted, linewidth=0.6, alpha=0.6, label=label)
        axes.plot(middles, _mean_of_heads(means), color=style.accent, linewidth=2, label="mean of heads")
    return _dressed(axes, labels, style)


def draw_head(
    edges: NDArray[np.int64], head: str, rows: Spread, labels: tuple[str, str], axes: Any, style: Style
) -> Any:
    """The mean of a head in the band between two quantiles; parameters as of `draw_heads`; gives the axes."""
    axes, middles = new_axes() if axes is None else axes, _middles(edges)
    low, high = (f"{100 * level:.0f}" for level in rows.levels)
    band = {"color": style.accent, "alpha": 0.25, "linewidth": 0, "label": f"{low} to {high} % of rows"}
    axes.fill_between(middles, rows.low, rows.high, **band)
    axes.plot(middles, rows.mean, color=style.accent, linewidth=1.6, label=f"mean, {head}")
    return _dressed(axes, labels, style)


def _middles(edges: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray((edges[:-1] + edges[1:] - 1) / 2)


def _dressed(axes: Any, labels: tuple[str, str], style: Style) -> Any:
    dress(axes, style, x=labels[0], y=labels[1], grid="y")
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    add_legend(axes, style)
    return axes


def _mean_of_heads(mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the heads that have a number; nan where none has."""
    known = ~np.isnan(mean)
    with np.errstate(invalid="ignore"):
        return np.asarray(mean.sum(axis=0, where=known) / known.sum(axis=0))
