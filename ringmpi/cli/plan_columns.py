"""How a plan writes numbers, and its tables of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.table import Table


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
