"""How a plan writes numbers, and the two kinds of table that it has."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.table import Table


def grid() -> Table:
    """Names and what is said of them."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def columns(title: str, *names: str) -> Table:
    """Numbers to the right, words to the left."""
    table = Table(box=None, padding=(0, 1), title=title, title_justify="left")
    for name in names:
        table.add_column(
            name,
            justify="left" if name in ("positions", "sharding", "formula", "term", "order") else "right",
            no_wrap=True,
        )
    return table


def count(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def si(number: float | np.integer[Any], unit: str) -> str:
    """A number with a unit, thousands by prefix."""
    size = float(number)
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(size) < 999.5:
            return f"{size:.3g} {prefix}{unit}"
        size /= 1000
    return f"{size:,.3g} E{unit}"


def in_seconds(seconds: float) -> str:
    """A time."""
    return f"{seconds:.3g} s" if seconds == 0 or seconds >= 0.1 else si(seconds * 1e6, "us").replace("kus", "ms")
