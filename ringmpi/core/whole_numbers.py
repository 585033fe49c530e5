"""Whole numbers of users, made Python's own where they come in.

NumPy's wrap at the end of their dtype, and JSON does not take them; a kernel takes 64 bits of whatever it is given.
"""

from __future__ import annotations

import operator
from typing import Any

LARGEST_POSITION = 1 << 53  # or length, or block: int64 has room for all that is made of it


def whole_number(value: Any, least: int = -LARGEST_POSITION, most: int = LARGEST_POSITION) -> int | None:
    """`value` as an int; None where it is no whole number (True and False are none) or not from `least` to `most`."""
    if isinstance(value, bool):
        return None
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return number if least <= number <= most else None
