"""Where what may be made again is kept: measured networks, machine code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def cache_home(environment: Mapping[str, str]) -> Path:
    """$RINGMPI_CACHE, else ringmpi below $XDG_CACHE_HOME, else below .cache in the home of the user."""
    if own := environment.get("RINGMPI_CACHE"):
        return Path(own)
    return Path(environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '')}/.cache") / "ringmpi"
