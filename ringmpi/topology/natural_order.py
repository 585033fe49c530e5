"""The order in which people count: n2 before n10."""

from __future__ import annotations

import re
from collections.abc import Iterable


def natural_order(names: Iterable[str]) -> list[str]:
    """`names` sorted, with runs of digits compared as numbers; a total order, whatever order they come in."""
    return sorted(names, key=_key)


def _key(name: str) -> tuple[list[tuple[int, str]], str]:
    """Text and numbers in turn; the name itself tells n1 and n01 apart."""
    parts = re.split(r"([0-9]+)", name)
    return [(int(part), "") if turn % 2 else (0, part) for turn, part in enumerate(parts)], name
