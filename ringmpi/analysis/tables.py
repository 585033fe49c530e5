"""A table of plain numbers and words, as it goes into a CSV file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

Cell: TypeAlias = int | float | str


class Table(NamedTuple):
    """Columns and rows.

    Attributes
    ----------
    columns : tuple of str
        With their units, where they have one: "attend_s".
    rows : sequence of tuple
        Each with as many cells as there are columns. What is not known is nan.
    """

    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]
