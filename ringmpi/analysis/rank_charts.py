"""Pictures by rank: bars along time, seconds, speeds, and efficiency over numbers of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.analysis.opened import bounds
from ringmpi.plotting import HEIGHT, TEXT_POINTS, Style, add_legend, dress, new_axes

Seconds = NDArray[np.float64]
BARS, OUTLINE = 64, 512  # ranks whose bars stand apart; steps of the outline of more
RANKS_AS_BARS, STEPS_AS_BARS = 32, 64  # above, a map is drawn instead
TALLEST = 6.0  # inches
NANO = 1e9


def draw_timeline(attend: Seconds, wait: Seconds, axes: Any, style: Style) -> Any:
    """Bars along time for each rank; of many ranks or steps the part of each step that was waited; gives the axes.

    attend, wait : float64 [ranks, steps], seconds
    """
    ranks, steps = attend.shape
    axes = _axes_for(ranks) if axes is None else axes
    if ranks > RANKS_AS_BARS or steps > STEPS_AS_BARS:
        return _draw_waits(attend, wait, axes, style)
    edges = np.cumsum(np.stack([attend, wait], axis=2).reshape(ranks, -1), axis=1)
    starts = np.hstack([np.zeros((ranks, 1)), edges[:, :-1]]).reshape(ranks, steps, 2)
    for rank in range(ranks):
        work, waits = (list(zip(starts[rank, :, n], s[rank], strict=True)) for n, s in ((0, attend), (1, wait)))
        axes.broken_barh(work, (rank - 0.4, 0.8), facecolor=style.accent, edgecolor=style.grid, linewidth=0.5)
        axes.broken_barh(waits, (rank - 0.4, 0.8), facecolor=style.warning, alpha=0.85, linewidth=0)
    axes.plot([], [], color=style.accent, linewidth=6, label="attending")
    axes.plot([], [], color=style.warning, linewidth=6, label="waiting")
    axes.set_yticks(range(ranks) if ranks <= 16 else range(0, ranks, 4))
    axes.set_ylim(ranks - 0.5, -0.5)
    dress(axes, style, x="seconds in the pass", y="rank", grid="x")
    axes.margins(x=0)
    add_legend(axes, style)
    return axes


def _draw_waits(attend: Seconds, wait: Seconds, axes: Any, style: Style) -> Any:
    """A map: which part of a step a rank waited."""
    whole = attend + wait
    share = np.divide(wait, whole, out=np.zeros_like(whole), where=whole > 0)
    image = axes.imshow(share, aspect="auto", interpolation="nearest", cmap=style.colormap, vmin=0, vmax=1)
    dress(axes, style, x="ring step", y="rank")
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02)
    bar.set_label("part of the step spent waiting", color=style.ink, fontsize=TEXT_POINTS)
    bar.ax.tick_params(colors=style.ink, labelsize=TEXT_POINTS - 1)
    bar.outline.set_visible(False)
    return axes


def draw_overlap(hidden: Seconds, exposed: Seconds, axes: Any, style: Style) -> Any:
    """Hidden and exposed seconds of each rank, float64 [ranks]; gives the axes."""
    ranks = len(hidden)
    axes = _axes_for(ranks) if axes is None else axes
    _bars(axes, hidden, color=style.accent, label="hidden behind work")
    _bars(axes, exposed, left=hidden, color=style.warning, label="exposed")
    _by_rank(axes, ranks)
    dress(axes, style, x="seconds with messages under way", y=_rank_label(ranks), grid="x")
    add_legend(axes, style)
    return axes


def draw_bars(values: NDArray[Any], label: str, axes: Any, style: Style) -> Any:
    """A bar for each rank, and a line at their mean; gives the axes."""
    ranks = len(values)
    axes = _axes_for(ranks) if axes is None else axes
    _bars(axes, values, color=style.accent)
    if ranks:
        axes.axvline(float(np.mean(values)), color=style.ink, linewidth=1, linestyle="--", label="mean")
        add_legend(axes, style)
    _by_rank(axes, ranks)
    dress(axes, style, x=label, y=_rank_label(ranks), grid="x")
    return axes


def draw_speeds(seconds_per_pair: Seconds, stands_out: int | None, axes: Any, style: Style) -> Any:
    """Nanoseconds per pair of each rank, that of a rank that stands out in another colour; gives the axes.

    seconds_per_pair : float64 [ranks], seconds; nan for a rank without pairs
    """
    ranks, nanoseconds = len(seconds_per_pair), seconds_per_pair * NANO
    axes = _axes_for(ranks) if axes is None else axes
    _bars(axes, np.nan_to_num(nanoseconds), color=style.accent)
    if stands_out is not None:
        axes.barh(stands_out, nanoseconds[stands_out], color=style.warning)
    axes.axvline(float(np.nanmedian(nanoseconds)), color=style.ink, linewidth=1, linestyle="--", label="median")
    _by_rank(axes, ranks)
    dress(axes, style, x="nanoseconds per pair", y=_rank_label(ranks), grid="x")
    add_legend(axes, style)
    return axes


def draw_scaling(
    cores: NDArray[np.int64], efficiency: NDArray[np.float64], kind: str, unit: str, axes: Any, style: Style
) -> Any:
    """Efficiency over cores, or what else the unit is, and the ideal; gives the axes.

    cores, efficiency : [runs]
    kind : "strong" or "weak"
    """
    axes = new_axes() if axes is None else axes
    axes.axhline(1, color=style.muted, linewidth=1, linestyle="--", label="ideal")
    axes.plot(cores, efficiency, color=style.accent, marker="o", linewidth=1.6, label=f"{kind} scaling")
    axes.set_xscale("log", base=2)
    counts = sorted(set(cores.tolist()))
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.set_ylim(0, max(1.1, 1.1 * float(efficiency.max())))
    dress(axes, style, x=f"{unit}s", y="efficiency", grid="y")
    add_legend(axes, style)
    return axes


def _bars(axes: Any, lengths: NDArray[Any], *, left: NDArray[Any] | None = None, color: str, label: str = "") -> None:
    """A bar for each rank; of many ranks one outline, of the longest ones.

    Thousands of bars would make pictures of megabytes, and be thinner than a dot.
    """
    ranks, base = len(lengths), np.zeros(len(lengths)) if left is None else left
    if ranks <= BARS:
        axes.barh(np.arange(ranks), lengths, left=base, color=color, label=label or None)
        return
    edges = bounds(ranks, OUTLINE)
    groups = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    longest = [first + int(np.argmax((base + lengths)[first:stop])) for first, stop in groups]
    outline = {"orientation": "horizontal", "fill": True, "color": color, "linewidth": 0}
    axes.stairs((base + lengths)[longest], edges - 0.5, baseline=base[longest], label=label or None, **outline)


def _rank_label(ranks: int) -> str:
    """Of the axis of ranks: what stands at a place of it."""
    return "rank" if ranks <= OUTLINE else f"rank (longest of {-(-ranks // OUTLINE)})"


def _axes_for(ranks: int) -> Any:
    """As high as so many bars need."""
    return new_axes(height=min(max(HEIGHT, 0.8 + 0.28 * ranks), TALLEST))


def _by_rank(axes: Any, ranks: int) -> None:
    """Rank 0 on top, all of them named where there is room."""
    axes.set_ylim(ranks - 0.5, -0.5)
    if ranks <= 16:
        axes.set_yticks(range(ranks))
