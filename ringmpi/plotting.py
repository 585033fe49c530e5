"""Figures by matplotlib, an extra that is imported only where a picture is asked for."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from ringmpi.errors import ConfigError, StorageError


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
            '--plot needs matplotlib, which is not installed. Run: python -m pip install "ringmpi[plot]"'
        ) from None
    return figures.Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as PNG, PDF or SVG by the ending of `path`.

    Raises
    ------
    ConfigError
        If matplotlib does not know the ending.
    StorageError
        If the file cannot be written.
    """
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:
        raise ConfigError(f"--plot {path}: {error}") from None
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {(error.strerror or str(error)).lower()}. Name another file."
        ) from None
