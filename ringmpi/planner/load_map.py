"""A picture of a plan: which rank does how much in which ring step."""

from __future__ import annotations

from pathlib import Path

from ringmpi.planner.plan import Plan
from ringmpi.plotting import new_figure, save_figure


def draw_load_map(plan: Plan, path: Path) -> None:
    """Write a rank x step map of the pairs attended to, as PNG, PDF or SVG by the suffix of `path`.

    Raises
    ------
    ConfigError
        If matplotlib is not installed, or does not know the ending.
    StorageError
        If the file cannot be written.
    """
    figure = new_figure(7, 5)
    pairs, problem = plan.tables.pairs, plan.problem
    axes = figure.subplots()
    most = max(int(pairs.max(initial=0)), 1)
    image = axes.imshow(pairs / most, aspect="auto", interpolation="nearest", cmap="viridis", vmin=0, vmax=1)
    axes.set(
        xlabel="ring step",
        ylabel="rank",
        title=f"{problem.queries.name}, {problem.mask}, schedule {problem.schedule.name}, {problem.size:,} ranks\n"
        f"busiest rank over mean: {plan.tables.imbalance:.3f}",
    )
    if plan.tables.steps <= 16:
        axes.set_xticks(range(plan.tables.steps))
    if problem.size <= 16:
        axes.set_yticks(range(problem.size))
    figure.colorbar(image, label=f"pairs attended to, of {most:,} per head")
    save_figure(figure, path)
