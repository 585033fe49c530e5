"""Figures by matplotlib, an extra that is imported only where a picture is asked for.

All pictures of results share one look: a `Style` holds its colours, `new_axes` and `dress` apply them. The series are
those of Okabe and Ito (2008, "Color Universal Design"), which people with any colour vision tell apart; lighter ones on
dark pages. Backgrounds are transparent.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

from ringmpi.errors import ConfigError, StorageError

WIDTH, HEIGHT = 4.6, 3.1  # inches: on a phone of 390 pixels, text of 10 points is then 12 pixels high
TEXT_POINTS = 10
DPI = 150
LEGEND_COLUMNS = 3
MOST_TICKS = 6  # along an axis of numbers
SVG_SALT = "ringmpi"  # ids in an SVG follow from it alone: the same picture has the same bytes


@dataclass(frozen=True)
class Style:
    """Colours of a picture, as matplotlib takes them.

    Attributes
    ----------
    ink, muted, grid : str
        Of text and axes, of what stands back, of lines of a grid.
    series : tuple of str
        Of lines and bars, in this order.
    accent, warning : str
        Of what the picture is about, and of what is wrong in it.
    colormap : str
        Name of the matplotlib colormap for maps; readable without colour too.
    """

    ink: str
    muted: str
    grid: str
    series: tuple[str, ...]
    accent: str
    warning: str
    colormap: str = "cividis"


LIGHT = Style(
    ink="#1a1a1a",
    muted="#666666",
    grid="#dddddd",
    series=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    accent="#0072b2",
    warning="#d55e00",
)
DARK = Style(
    ink="#e8e8e8",
    muted="#a3a3a3",
    grid="#3d3d3d",
    series=("#56b4e9", "#e69f00", "#2fc39a", "#e29bc3", "#f0e442", "#4b8fd0"),
    accent="#56b4e9",
    warning="#e69f00",
)


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib Figure of this size, inches.

    Raises
    ------
    ConfigError
        If matplotlib is not installed.
    """
    try:
        figures = import_module("matplotlib.figure")
    except ImportError:
        raise ConfigError(
            "a picture needs matplotlib, which is not installed. Run: python -m pip install matplotlib"
        ) from None
    return figures.Figure(figsize=(width, height), layout="constrained")


def new_axes(width: float = WIDTH, height: float = HEIGHT) -> Any:
    """The axes of a new Figure, inches, with a transparent background.

    Raises
    ------
    ConfigError
        If matplotlib is not installed.
    """
    figure = new_figure(width, height)
    figure.patch.set_alpha(0)
    return figure.subplots()


def dress(axes: Any, style: Style, *, x: str, y: str, grid: str = "") -> None:
    """Give axes their labels and the colours of a style.

    x, y : what the axes show, with units
    grid : "x", "y" or "both": lines of a grid across these
    """
    axes.patch.set_alpha(0)
    axes.set_xlabel(x, color=style.ink, fontsize=TEXT_POINTS)
    axes.set_ylabel(y, color=style.ink, fontsize=TEXT_POINTS)
    axes.tick_params(colors=style.ink, labelsize=TEXT_POINTS - 1)
    for name, spine in axes.spines.items():
        spine.set_color(style.muted)
        spine.set_visible(name in ("left", "bottom"))
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if axis.get_scale() == "linear" and type(axis.get_major_locator()).__name__ == "AutoLocator":
            axes.locator_params(axis=name, nbins=MOST_TICKS)
    if grid:
        axes.grid(True, axis=grid, color=style.grid, linewidth=0.6)
        axes.set_axisbelow(True)


def add_legend(axes: Any, style: Style, **options: Any) -> None:
    """A legend above the axes, without a frame, in the colours of a style; it reads line by line."""
    handles, labels = axes.get_legend_handles_labels()
    columns = min(LEGEND_COLUMNS, max(len(labels), 1))
    order = [n for column in range(columns) for n in range(column, len(labels), columns)]  # matplotlib goes down first
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "frameon": False, "borderaxespad": 0.2}
    look = {"fontsize": TEXT_POINTS - 1, "labelcolor": style.ink, "ncols": columns}
    axes.legend([handles[n] for n in order], [labels[n] for n in order], **(place | look | options))


def svg_bytes(figure: Any) -> bytes:
    """A figure as SVG: letters as outlines, no date, the same bytes for the same picture."""
    with import_module("matplotlib").rc_context({"svg.hashsalt": SVG_SALT, "svg.fonttype": "path"}):
        return _saved(figure, "svg", dpi=DPI, metadata={"Date": None, "Creator": None})


def png_bytes(figure: Any, dpi: int = DPI) -> bytes:
    """A figure as PNG, that many pixels per inch, the same bytes for the same picture."""
    return _saved(figure, "png", dpi=dpi, metadata={"Software": None})


def _saved(figure: Any, kind: str, **options: Any) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format=kind, transparent=True, **options)
    return buffer.getvalue()


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as PNG, PDF or SVG by the suffix of `path`.

    Raises
    ------
    ConfigError
        If matplotlib does not know the suffix.
    StorageError
        If the file cannot be written.
    """
    try:
        figure.savefig(path, dpi=DPI)
    except ValueError as error:
        raise ConfigError(f"--plot {path}: {error}") from None
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {(error.strerror or str(error)).lower()}. Name another file."
        ) from None
