"""A picture of a benchmark: its main figure as bars, with intervals; a panel for what differs only in the last word."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from ringmpi.bench.report import Report, Row
from ringmpi.errors import ConfigError
from ringmpi.plotting import new_figure, save_figure


def draw(report: Report, path: Path) -> None:
    """Write PNG, PDF or SVG by the suffix of `path`.

    Raises
    ------
    ConfigError
        If matplotlib is not installed, does not know the ending, or there is nothing to draw.
    StorageError
        If the file cannot be written.
    """
    panels: dict[str, list[tuple[str, Row]]] = defaultdict(list)
    shown = [row for row in report.rows if report.main in row.figures]
    for row in shown:
        *before, (_, last) = row.subject.items()
        if row.figures[report.main].unit == shown[0].figures[report.main].unit:
            panels[", ".join(f"{name} {value}" for name, value in before)].append((last, row))
    if not panels:
        raise ConfigError(f"--plot {path}: no row has the figure {report.main!r}; there is nothing to draw.")
    figure = new_figure(7, 0.3 * sum(len(panel) + 2 for panel in panels.values()) + 0.5)
    heights = [len(panel) + 1 for panel in panels.values()]
    grid = figure.subplots(len(panels), squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, (title, panel) in zip(grid[:, 0], panels.items(), strict=True):
        found = [row.figures[report.main] for _, row in panel]
        error = [[f.median - f.low for f in found], [f.high - f.median for f in found]]
        axes.barh([name for name, _ in panel], [f.median for f in found], xerr=error, capsize=2)
        axes.invert_yaxis()
        axes.set(title=title, xlabel=_label(report.main, found[0].unit) if axes is grid[-1, 0] else "")
    save_figure(figure, path)


def _label(name: str, unit: str) -> str:
    return name if unit in name else f"{name}, {unit}"
