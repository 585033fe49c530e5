"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[int] = ()) -> str:
    """A Markdown table; columns `right` hold numbers."""
    rule = ["---:" if n in right else "---" for n in range(len(head))]
    cells = ([str(cell).replace("|", "\\|") for cell in row] for row in (head, rule, *rows))
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)
