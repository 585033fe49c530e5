"""How a quantity over position is drawn on the page: with many heads, or with peaks, so that it stays readable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ringmpi.analysis import Profile
from ringmpi.plotting import Style

MOST_LINES = 48  # a line per head makes a page of megabytes, and says less
PEAKED = 30  # times the median, from which a peak flattens all else
ROOM = 1.5  # factor beyond the smallest and the largest of a logarithmic axis
LEVELS = {"lowest head": 0.0, "median of heads": 0.5, "highest head": 1.0}


@dataclass(frozen=True, eq=False)
class ShownProfile:
    """A profile, ready to be drawn.

    Attributes
    ----------
    profile : Profile
        With a line for each of its heads.
    caption : str
    is_logarithmic : bool
        Its axis.
    """

    profile: Profile
    caption: str
    is_logarithmic: bool

    def plot(self, axes: Any, *, style: Style) -> None:
        """Draw it."""
        self.profile.plot(axes, style=style)
        if self.is_logarithmic:
            drawn = self.profile.mean[self.profile.mean > 0]
            axes.set_yscale("log")
            axes.set_ylim(float(drawn.min()) / ROOM, float(drawn.max()) * ROOM)


def shown(profile: Profile) -> ShownProfile:
    """The profile as the page shows it."""
    caption, heads = profile.caption, len(profile.heads)
    is_logarithmic = _is_peaked(profile)
    if heads > MOST_LINES:
        profile = _over_heads(profile)
        caption += f" Of {heads:,} heads: the lowest, the median and the highest at each place; all are in the table."
    if is_logarithmic:
        caption += " The axis is logarithmic."
    return ShownProfile(profile, caption, is_logarithmic)


def _is_peaked(profile: Profile) -> bool:
    """Whether on a linear axis a peak would flatten all else."""
    means = profile.mean[profile.rows > 0]
    return bool(len(means)) and 0 < PEAKED * float(np.median(means)) < float(means.max())


def _over_heads(profile: Profile) -> Profile:
    """Quantiles over heads in the place of the heads."""
    lines = np.full((len(LEVELS), profile.mean.shape[1]), np.nan)
    known = (profile.rows > 0).any(axis=0)
    lines[:, known] = np.nanquantile(profile.mean[:, known], list(LEVELS.values()), axis=0)
    return replace(profile, heads=tuple(LEVELS), mean=lines)
