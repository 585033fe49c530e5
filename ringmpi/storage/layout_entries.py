"""The form in which layout.py and record_layout.py say what is in a file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DatasetLayout:
    """One dataset. `axes` in order; "(batch)" is there when the input has it.

    Attributes `axes`, `unit` and `meaning` of the dataset hold the same texts in the file.
    """

    path: str
    axes: tuple[str, ...]
    dtype: str
    unit: str
    meaning: str


@dataclass(frozen=True)
class AttributeLayout:
    """One attribute `name` of the object at `path`."""

    path: str
    name: str
    dtype: str
    meaning: str


DIGEST_ATTRIBUTE = "blake2b"
DIGEST_MEANING = "digest of the array: hexadecimal, 32 bytes, C order"
WIDE = "float64 for float64 input, else float32"
