"""Numbers for people: with units, and as many digits as mean something."""

from __future__ import annotations

import math

SECONDS = ((1e-6, 1e9, "ns"), (1e-3, 1e6, "us"), (1.0, 1e3, "ms"))
BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


def seconds(value: float) -> str:
    """A time: "83.1 ms", "12.3 s", "2 h 05 min"."""
    if not math.isfinite(value):
        return "unknown"
    for below, factor, unit in SECONDS:
        if 0 < abs(value) < below:
            return f"{value * factor:.3g} {unit}"
    if abs(value) < 600:
        return f"{value:.3g} s"
    minutes = round(value / 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min"


def size(nbytes: float) -> str:
    """Bytes: "701 MiB"."""
    divisor, unit = byte_unit(nbytes)
    value = nbytes / divisor
    return f"{value:,.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"


def byte_unit(nbytes: float) -> tuple[float, str]:
    """The unit in which so many bytes have at most three digits: (1048576.0, "MiB")."""
    power = next((n for n in range(len(BYTES)) if abs(nbytes) < 1000 * 1024.0**n), len(BYTES) - 1)
    return 1024.0**power, BYTES[power]


def percent(part: float) -> str:
    """A part of 1: "93 %", "0.41 %"."""
    if not math.isfinite(part):
        return "-"
    return f"{100 * part:.0f} %" if part >= 0.1 or part == 0 else f"{100 * part:.2g} %"


def decimal(value: float) -> str:
    """Three digits that count, thousands apart; "-" where there is no number."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def ratio(value: float) -> str:
    """A factor: "1.00", "1.47"."""
    return f"{value:.2f}" if math.isfinite(value) else "-"


def counted(count: int, noun: str) -> str:
    """So many of a thing: "1 rank", "4,096 ranks"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: list[str]) -> str:
    """Names in a sentence: "a", "a and b", "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
