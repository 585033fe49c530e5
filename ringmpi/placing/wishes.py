"""What may be asked of the placing of a ring: a word, or files that describe the network."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TypeAlias

LAUNCHER, AUTO, MEASURE = "launcher", "auto", "measure"

Placement: TypeAlias = str | PathLike[str] | Sequence[str | PathLike[str]]
