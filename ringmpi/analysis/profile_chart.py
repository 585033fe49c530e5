"""Pictures of a quantity over position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.plotting import Style, add_legend, dress, new_axes

if TYPE_CHECKING:
    from ringmpi.analysis.profiles import Profile

NAMED = 6  # heads that have a colour and a name each; of more only their mean has


def draw_profile(profile: Profile, axes: Any, slab: int | None, style: Style) -> Any:
    """All heads and their mean, or one with the band between its outer quantiles; gives the axes."""
    axes = new_axes() if axes is None else axes
    middles = (profile.edges[:-1] + profile.edges[1:] - 1) / 2
    if slab is not None:
        band = f"{100 * profile.levels[0]:.0f} to {100 * profile.levels[-1]:.0f} % of rows"
        low, high = profile.quantiles[slab, 0], profile.quantiles[slab, -1]
        axes.fill_between(middles, low, high, color=style.accent, alpha=0.25, linewidth=0, label=band)
        axes.plot(middles, profile.mean[slab], color=style.accent, linewidth=1.6, label=f"mean, {profile.heads[slab]}")
    elif len(profile.heads) <= NAMED:
        for name, mean, color in zip(profile.heads, profile.mean, style.series, strict=False):
            axes.plot(middles, mean, color=color, linewidth=1.3, label=name)
    else:
        for nth, mean in enumerate(profile.mean):
            label = "each head" if nth == 0 else None
            axes.plot(middles, mean, color=style.muted, linewidth=0.6, alpha=0.6, label=label)
        axes.plot(middles, _mean_of_heads(profile.mean), color=style.accent, linewidth=2, label="mean of heads")
    position = "key" if profile.name == "received" else "query"
    dress(axes, style, x=f"position of the {position}", y=profile.label, grid="y")
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    add_legend(axes, style)
    return axes


def _mean_of_heads(mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the heads that have a number; nan where none has."""
    known = ~np.isnan(mean)
    with np.errstate(invalid="ignore"):
        return np.asarray(mean.sum(axis=0, where=known) / known.sum(axis=0))
