"""How evenly the ranks shared work and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.analysis.opened import Source, opened
from ringmpi.analysis.rank_charts import draw_bars
from ringmpi.analysis.tables import Table
from ringmpi.analysis.timelines import rank_names, timeline
from ringmpi.core.stages import FORWARD
from ringmpi.numbers import byte_unit
from ringmpi.plotting import LIGHT, Style


@dataclass(frozen=True, eq=False)
class Balance:
    """How evenly a pass was shared.

    Attributes
    ----------
    path : str
    which : str
    ranks : tuple of str [ranks]
    pairs : int64 [ranks]
        (query, key) pairs, over batch and query heads.
    attend : float64 [ranks], seconds
        In the kernels.
    """

    path: str
    which: str
    ranks: tuple[str, ...]
    pairs: NDArray[np.int64]
    attend: NDArray[np.float64]

    @property
    def pairs_ratio(self) -> float:
        """Most pairs of a rank over their mean; 1 is even, nan without pairs."""
        return _over_mean(self.pairs)

    @property
    def attend_ratio(self) -> float:
        """Longest seconds of a rank in the kernels over their mean; 1 is even, nan without any."""
        return _over_mean(self.attend)

    @property
    def caption(self) -> str:
        """What the picture shows, and how to read it."""
        return (
            f"Seconds in the kernels by rank in the {self.which} pass; the line is their mean. The longest bar is "
            f"{self.attend_ratio:.3f} of the mean, the most pairs are {self.pairs_ratio:.3f} of theirs: where pairs "
            f"are even and seconds are not, ranks differ in speed, not in work."
        )

    def table(self) -> Table:
        """One row for each rank."""
        rows = [(r, int(self.pairs[r]), float(self.attend[r])) for r in range(len(self.ranks))]
        return Table(("rank", "pairs", "attend_s"), rows)

    def plot(self, axes: Any = None, *, style: Style = LIGHT) -> Any:
        """Draw a bar for each rank; returns the matplotlib Axes. ConfigError if matplotlib is not installed."""
        return draw_bars(self.attend, "seconds in the kernels", axes, style)


@dataclass(frozen=True, eq=False)
class Memory:
    """How much memory the processes held.

    Attributes
    ----------
    path : str
    ranks : tuple of str [ranks]
    peak : int64 [ranks], bytes
        Largest resident memory of the process, libraries included.
    """

    path: str
    ranks: tuple[str, ...]
    peak: NDArray[np.int64]

    @property
    def largest(self) -> int:
        """The most that a rank held, bytes."""
        return int(self.peak.max(initial=0))

    @property
    def ratio(self) -> float:
        """The most over the mean."""
        return _over_mean(self.peak)

    @property
    def caption(self) -> str:
        """What the picture shows, and how to read it."""
        return (
            f"Largest resident memory of each rank's process, libraries included, in {byte_unit(self.largest)[1]}; the "
            "line is the mean. A rank above the others is the one that would run out first."
        )

    def table(self) -> Table:
        """One row for each rank."""
        return Table(("rank", "peak_bytes"), [(r, int(peak)) for r, peak in enumerate(self.peak)])

    def plot(self, axes: Any = None, *, style: Style = LIGHT) -> Any:
        """Draw a bar for each rank; returns the matplotlib Axes. ConfigError if matplotlib is not installed."""
        divisor, unit = byte_unit(self.largest)
        return draw_bars(self.peak / divisor, f"largest memory, {unit}", axes, style)


def balance(source: Source, which: str = FORWARD) -> Balance:
    """How evenly pairs and seconds were shared; parameters and errors as `timeline`."""
    whole = timeline(source, which)
    return Balance(whole.path, which, whole.ranks, whole.pairs.sum(axis=1), whole.attend.sum(axis=1))


def memory(source: Source) -> Memory:
    """The peak memory of each rank; StorageError if the file is missing, damaged, or not a ringmpi output."""
    with opened(source) as results:
        account = results.account
        return Memory(str(results.path), rank_names(account.provenance), account.timeline.peak_memory_bytes)


def _over_mean(values: NDArray[Any]) -> float:
    mean = float(values.mean()) if len(values) else 0.0
    return float(values.max()) / mean if mean else float("nan")
