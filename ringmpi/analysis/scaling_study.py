"""How a problem scales, from the outputs of runs on several numbers of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.analysis.opened import Source
from ringmpi.analysis.rank_charts import draw_scaling
from ringmpi.analysis.run_summary import Summary, summary
from ringmpi.analysis.tables import Table
from ringmpi.errors import ConfigError
from ringmpi.plotting import LIGHT, Style

STRONG, WEAK = "strong", "weak"
FREE_TO_DIFFER = ("output.", "input.", "checkpoint.", "ring.placement")  # options that leave a problem as it is


@dataclass(frozen=True, eq=False)
class Scaling:
    """Several runs of one problem, by ascending number of ranks.

    Attributes
    ----------
    kind : str
        "strong": one length on all; "weak": as many queries a rank on all, so longer sequences on more ranks.
    paths : tuple of str [runs]
    ranks : int64 [runs]
    lengths : int64 [runs], positions
        Of the queries.
    seconds : float64 [runs], seconds
        Of all passes: the rank that took longest, attending and waiting. Reading and writing are not included.
    pairs : int64 [runs]
        (query, key) pairs, over batch and query heads.
    """

    kind: str
    paths: tuple[str, ...]
    ranks: NDArray[np.int64]
    lengths: NDArray[np.int64]
    seconds: NDArray[np.float64]
    pairs: NDArray[np.int64]

    @property
    def rate(self) -> NDArray[np.float64]:
        """Pairs a second, float64 [runs]."""
        return np.asarray(self.pairs / self.seconds)

    @property
    def speedup(self) -> NDArray[np.float64]:
        """Pairs a second over those of a run on the fewest ranks (their mean, where there are several), [runs]."""
        return np.asarray(self.rate / self.rate[self.ranks == self.ranks[0]].mean())

    @property
    def efficiency(self) -> NDArray[np.float64]:
        """Speedup over how many times as many ranks there were, float64 [runs]; 1 is all that can be hoped for."""
        return np.asarray(self.speedup * self.ranks[0] / self.ranks)

    @property
    def caption(self) -> str:
        """What the picture shows, and how to read it."""
        what = "one problem" if self.kind == STRONG else "problems with as many queries on each rank"
        return (
            f"{self.kind.capitalize()} scaling: {what} on more and more ranks. Efficiency is pairs a second and rank "
            f"over those on {int(self.ranks[0])}; 1 is all that can be hoped for, and what is missing went into "
            f"waiting, smaller blocks or uneven shares."
        )

    def table(self) -> Table:
        """One row for each run."""
        columns = ("path", "ranks", "length", "pairs", "seconds", "speedup", "efficiency")
        arrays = (self.ranks, self.lengths, self.pairs, self.seconds, self.speedup, self.efficiency)
        rows = [(path, *(array[n].item() for array in arrays)) for n, path in enumerate(self.paths)]
        return Table(columns, rows)

    def plot(self, axes: Any = None, *, style: Style = LIGHT) -> Any:
        """Draw efficiency over ranks; returns the matplotlib Axes. ConfigError if matplotlib is not installed."""
        return draw_scaling(self, axes, style)


def scaling(sources: Sequence[Source]) -> Scaling:
    """Compare outputs of one problem on several numbers of ranks.

    Parameters
    ----------
    sources : sequence of path or Results
        Two or more. Several on the same number of ranks may be among them.

    Raises
    ------
    ConfigError
        If they are neither a strong nor a weak scaling study, or differ in more than ranks and lengths.
    StorageError
        If a file is missing, damaged, or no output of ringmpi.
    """
    runs = sorted((summary(source) for source in sources), key=lambda run: (run.ranks, run.query_length))
    if len({run.ranks for run in runs}) < 2:
        where = f", all of runs on {runs[0].ranks} ranks" if runs else ""
        raise ConfigError(f"outputs: {len(runs)}{where}; needed are at least two numbers of ranks. Add other outputs.")
    _check_same_problem(runs)
    kind = _kind(runs)
    seconds = np.array([sum(run.pass_seconds.values()) for run in runs])
    if not (seconds > 0).all():
        path = runs[int(np.argmin(seconds))].path
        raise ConfigError(f"{path}: its timeline has no seconds, so there is nothing to compare. Leave it out.")
    return Scaling(
        kind=kind,
        paths=tuple(run.path for run in runs),
        ranks=np.array([run.ranks for run in runs], np.int64),
        lengths=np.array([run.query_length for run in runs], np.int64),
        seconds=seconds,
        pairs=np.array([run.pairs_attended for run in runs], np.int64),
    )


def _kind(runs: Sequence[Summary]) -> str:
    """Which kind of study the lengths make of it."""
    if len({run.query_length for run in runs}) == 1:
        return STRONG
    share = runs[0].query_length / runs[0].ranks
    if all(abs(run.query_length - share * run.ranks) < max(run.ranks, runs[0].ranks) for run in runs):
        return WEAK
    found = ", ".join(f"{run.query_length:,} on {run.ranks} ({run.path})" for run in runs)
    raise ConfigError(
        f"neither strong nor weak scaling: queries on ranks are {found}. Needed is one length on all, or one length a "
        f"rank. Leave out what does not belong to it."
    )


def _check_same_problem(runs: Sequence[Summary]) -> None:
    """ConfigError where runs differ in more than ranks and lengths."""
    first, *others = [_problem(run) for run in runs]
    for run, problem in zip(runs[1:], others, strict=True):
        for name in sorted(first.keys() | problem.keys()):
            if first.get(name) != problem.get(name):
                raise ConfigError(
                    f"{runs[0].path} and {run.path} differ in {name}: {first.get(name)} and {problem.get(name)}. "
                    f"Scaling compares runs of one problem; leave one of the two out."
                )


def _problem(run: Summary) -> dict[str, Any]:
    """What must be the same."""
    options = {name: value for name, value in run.options.items() if not name.startswith(FREE_TO_DIFFER)}
    shape = {name: getattr(run, name) for name in ("batch", "heads", "value_dim", "dtype")}
    return options | shape | {"gradients": "backward" in run.pass_seconds}
