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
from ringmpi.numbers import counted
from ringmpi.plotting import LIGHT, Style

STRONG, WEAK = "strong", "weak"
CORE, RANK = "core", "rank"
NOT_BY_CORES = "threads are not in all of these outputs, or GPUs worked"
FREE_TO_DIFFER = ("output.", "input.", "checkpoint.", "ring.placement")  # options that leave a problem as it is


@dataclass(frozen=True, eq=False)
class Scaling:
    """Several runs of one problem, by ascending number of ranks, compared by what a core does.

    Attributes
    ----------
    kind : str
        "strong": one length on all; "weak": as many queries per core on all, so longer sequences on more of them.
    unit : str
        "core", or "rank" where an output does not say its threads, or GPUs have computed it.
    paths : tuple of str [runs]
    ranks : int64 [runs]
    cores : int64 [runs]
        Threads of all ranks; with the unit "rank" the ranks.
    lengths : int64 [runs], positions
        Of the queries.
    seconds : float64 [runs], seconds
        Of all passes: the rank that took longest, attending and waiting. Reading and writing are not included.
    pairs : int64 [runs]
        (query, key) pairs, over batch and query heads.
    """

    kind: str
    unit: str
    paths: tuple[str, ...]
    ranks: NDArray[np.int64]
    cores: NDArray[np.int64]
    lengths: NDArray[np.int64]
    seconds: NDArray[np.float64]
    pairs: NDArray[np.int64]

    @property
    def rate(self) -> NDArray[np.float64]:
        """Pairs per second, float64 [runs]."""
        return np.asarray(self.pairs / self.seconds)

    @property
    def speedup(self) -> NDArray[np.float64]:
        """Pairs per second over those of a run on the fewest ranks (their mean, where there are several), [runs]."""
        return np.asarray(self.rate / self.rate[self.ranks == self.ranks[0]].mean())

    @property
    def efficiency(self) -> NDArray[np.float64]:
        """Pairs per second and core, over those of a run on the fewest ranks, [runs]; 1 is ideal."""
        each = self.rate / self.cores
        return np.asarray(each / each[self.ranks == self.ranks[0]].mean())

    @property
    def caption(self) -> str:
        """What the picture shows, and how to read it."""
        what = "one problem" if self.kind == STRONG else f"problems with the same number of queries per {self.unit}"
        unit = f"{self.unit} ({NOT_BY_CORES})" if self.unit == RANK else "core (a thread of a rank)"
        return (
            f"{self.kind.capitalize()} scaling: {what} on more and more {self.unit}s. Efficiency is pairs per second "
            f"per {unit}, divided by those on {counted(int(self.ranks[0]), 'rank')}; 1 is ideal, and what is "
            f"missing went into waiting, smaller blocks or uneven shares."
        )

    def table(self) -> Table:
        """One row for each run."""
        columns = ("path", "ranks", "cores", "length", "pairs", "seconds", "speedup", "efficiency")
        arrays = (self.ranks, self.cores, self.lengths, self.pairs, self.seconds, self.speedup, self.efficiency)
        rows = [(path, *(array[n].item() for array in arrays)) for n, path in enumerate(self.paths)]
        return Table(columns, rows)

    def plot(self, axes: Any = None, *, style: Style = LIGHT) -> Any:
        """Draw efficiency over cores; returns the matplotlib Axes. ConfigError if matplotlib is not installed."""
        return draw_scaling(self.cores, self.efficiency, self.kind, self.unit, axes, style)


def scaling(sources: Sequence[Source]) -> Scaling:
    """Compare outputs of one problem on several numbers of ranks.

    Parameters
    ----------
    sources : sequence of path or Results
        Two or more. Several on the same number of ranks may be among them.

    Raises
    ------
    ConfigError
        If they are neither a strong nor a weak scaling study, differ in more than ranks and lengths, or all had the
        same number of cores; if one was stopped and resumed: then only the last attempt's seconds are kept.
    StorageError
        If a file is missing, damaged, or not a ringmpi output.
    """
    runs = sorted((summary(source) for source in sources), key=lambda run: (run.ranks, run.query_length))
    _check_all_timed(runs)
    if len({run.ranks for run in runs}) < 2:
        where = f", all of runs on {runs[0].ranks} ranks" if runs else ""
        raise ConfigError(
            f"outputs: {len(runs)}{where}; expected runs on at least two numbers of ranks. Add other outputs."
        )
    _check_same_problem(runs)
    unit, cores = _cores(runs)
    kind = _kind(runs, unit, cores)
    seconds = np.array([sum(run.pass_seconds.values()) for run in runs])
    if not (seconds > 0).all():
        path = runs[int(np.argmin(seconds))].path
        raise ConfigError(f"{path}: its timeline has no seconds, so there is nothing to compare. Leave it out.")
    return Scaling(
        kind=kind,
        unit=unit,
        paths=tuple(run.path for run in runs),
        ranks=np.array([run.ranks for run in runs], np.int64),
        cores=cores,
        lengths=np.array([run.query_length for run in runs], np.int64),
        seconds=seconds,
        pairs=np.array([run.pairs_attended for run in runs], np.int64),
    )


def _check_all_timed(runs: Sequence[Summary]) -> None:
    """ConfigError where the seconds of a run are not those of all its pairs."""
    for run in runs:
        if run.part_timed:
            raise ConfigError(
                f"{run.path}: its seconds cover {run.part_timed}, its pairs everything. Leave it out, or compute it "
                f"again without a stop."
            )


def _cores(runs: Sequence[Summary]) -> tuple[str, NDArray[np.int64]]:
    """What is counted, and how many of it each run had; ConfigError where all had as many."""
    threads = [run.cores for run in runs]
    if None in threads:
        return RANK, np.array([run.ranks for run in runs], np.int64)
    if len(set(threads)) < 2:
        found = ", ".join(f"{counted(run.ranks, 'rank')} ({run.path})" for run in runs)
        raise ConfigError(
            f"no scaling: {found} had {counted(threads[0] or 0, 'thread')} in all, so more ranks had no more cores. "
            f"Run with the same number of threads per rank, for example OMP_NUM_THREADS=1."
        )
    return CORE, np.array(threads, np.int64)


def _kind(runs: Sequence[Summary], unit: str, cores: NDArray[np.int64]) -> str:
    """Which kind of study the lengths make of it."""
    if len({run.query_length for run in runs}) == 1:
        return STRONG
    lengths, counts = [run.query_length for run in runs], cores.tolist()
    share = lengths[0] / counts[0]
    if all(abs(n - share * count) < max(count, counts[0]) for n, count in zip(lengths, counts, strict=True)):
        return WEAK
    found = ", ".join(f"{run.query_length:,} on {n} ({run.path})" for run, n in zip(runs, counts, strict=True))
    raise ConfigError(
        f"neither strong nor weak scaling: queries on {unit}s are {found}. Expected the same length on all, or the "
        f"same length per {unit}. Leave out the others."
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
