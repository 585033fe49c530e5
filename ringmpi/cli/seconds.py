"""Seconds of the ranks of a run as a table: min, mean, max, and the rank that stands out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from ringmpi.analysis.timelines import rank_names
from ringmpi.storage.account import Account

SLOW = 1.5  # times the mean, from which a rank is named
SLOW_SECONDS = 0.1  # a mean below is not worth a word


def rank_table(account: Account) -> Table:
    """What the ranks spent their time with."""
    timeline, names = account.timeline, rank_names(account.provenance)
    table = titled(f"seconds in all{' of the forward pass' if account.backward else ''}, over ranks")
    for name in ("", "min", "mean", "max"):
        table.add_column(name, justify="right")
    table.add_column("")
    for name, seconds in (
        ("attend", timeline.attend_seconds.sum(1)),
        ("wait", timeline.wait_seconds.sum(1)),
        ("read", timeline.read_seconds),
        ("write", timeline.write_seconds),
    ):
        table.add_row(name, *spread(seconds), standing_out(seconds, names))
    return table


def standing_out(seconds: NDArray[np.float64], names: Sequence[str]) -> str:
    """The rank that takes far longer than the mean, in words; empty where none does, or where the mean is short.

    Parameters
    ----------
    seconds : float64 [ranks]
    names : sequence of str [ranks]
    """
    rank, mean = int(seconds.argmax()), float(seconds.mean())
    if mean <= SLOW_SECONDS or seconds[rank] <= SLOW * mean:
        return ""
    return f"{names[rank]}: {seconds[rank] / mean:.1f} times the mean"


def spread(seconds: NDArray[np.float64]) -> tuple[str, str, str]:
    """Min, mean and max, as texts."""
    return _digits(seconds.min()), _digits(seconds.mean()), _digits(seconds.max())


def _digits(seconds: float) -> str:
    """Milliseconds where they matter; short, so that a line stays a line."""
    return f"{seconds:.{3 if seconds < 10 else 2 if seconds < 100 else 1}f}"


def titled(title: str) -> Table:
    """An empty table without lines."""
    return Table(box=None, padding=(0, 1), title=title, title_justify="left")
