"""What the timeline of an output says: seconds by rank and step, and how far work hid the transfers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.analysis.opened import OPTIONS, Source, opened
from ringmpi.analysis.rank_charts import draw_overlap, draw_timeline
from ringmpi.analysis.tables import Table
from ringmpi.core.rank_name import rank_name
from ringmpi.core.stages import BACKWARD, FORWARD, MAP
from ringmpi.errors import ConfigError
from ringmpi.plotting import LIGHT, Style
from ringmpi.storage.account import Account, PassTimeline, Provenance, hidden_share
from ringmpi.storage.record_layout import RECORDED_MAP
from ringmpi.storage.results import Results

TRAVELLING = {FORWARD: "keys and values", MAP: "queries", BACKWARD: "what travels with its gradients"}
ASKED_BY = {FORWARD: "[attention]", MAP: OPTIONS[RECORDED_MAP], BACKWARD: "[backward]"}  # names of passes


@dataclass(frozen=True, eq=False)
class RunTimeline:
    """What every rank did in every ring step of a pass.

    Attributes
    ----------
    path : str
    which : str
        "forward", "map" (what is recorded after it) or "backward".
    ranks : tuple of str [ranks]
        By ring position: "rank 1 (launch rank 3, node b)".
    attend : float64 [ranks, steps], seconds
        In the kernels.
    wait : float64 [ranks, steps], seconds
        For a hop that was due: what transfers, and late ranks, cost this rank.
    flight : float64 [ranks, steps], seconds
        While any message was in transit.
    bytes_sent : int64 [ranks, steps], bytes
    pairs : int64 [ranks, steps]
        (query, key) pairs, over batch and query heads.
    """

    path: str
    which: str
    ranks: tuple[str, ...]
    attend: NDArray[np.float64]
    wait: NDArray[np.float64]
    flight: NDArray[np.float64]
    bytes_sent: NDArray[np.int64]
    pairs: NDArray[np.int64]

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Of each rank, attending and waiting: float64 [ranks], seconds."""
        return np.asarray((self.attend + self.wait).sum(axis=1))

    @property
    def caption(self) -> str:
        """What the picture shows, and how to read it."""
        return (
            f"What each rank did in the {self.which} pass, in seconds from its first ring step: attending in the "
            f"kernels, and waiting for {TRAVELLING[self.which]} that had not arrived. A rank that never waits while "
            f"others wait for it is the one that holds up the ring."
        )

    def table(self) -> Table:
        """One row for each rank and step."""
        columns = ("rank", "step", "attend_s", "wait_s", "flight_s", "bytes_sent", "pairs")
        arrays = (self.attend, self.wait, self.flight, self.bytes_sent, self.pairs)
        rows = [(r, s, *(array[r, s].item() for array in arrays)) for r, s in np.ndindex(*self.attend.shape)]
        return Table(columns, rows)

    def plot(self, axes: Any = None, *, style: Style = LIGHT) -> Any:
        """Draw bars along time for each rank; of many ranks or steps, a map of how much of its time a rank waits.

        Returns
        -------
        matplotlib Axes
            `axes`, or those of a new Figure.

        Raises
        ------
        ConfigError
            If matplotlib is not installed.
        """
        return draw_timeline(self.attend, self.wait, axes, style)


@dataclass(frozen=True, eq=False)
class Overlap:
    """How far work hid the transfers of a pass.

    Attributes
    ----------
    path : str
    which : str
    ranks : tuple of str [ranks]
    flight : float64 [ranks], seconds
        While any message was in transit.
    wait : float64 [ranks], seconds
        Of these, without work: exposed. A late rank counts as a slow transfer does.
    """

    path: str
    which: str
    ranks: tuple[str, ...]
    flight: NDArray[np.float64]
    wait: NDArray[np.float64]

    @property
    def hidden(self) -> NDArray[np.float64]:
        """Seconds in which a rank worked while messages were under way, float64 [ranks]."""
        return np.maximum(self.flight - self.wait, 0)

    @property
    def by_rank(self) -> NDArray[np.float64]:
        """Hidden part of the seconds of flight, float64 [ranks]; nan where nothing was under way."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.hidden / self.flight)

    @property
    def share(self) -> float | None:
        """The same over all ranks; None where nothing was under way."""
        return hidden_share(self.flight, self.wait)

    @property
    def caption(self) -> str:
        """What the picture shows, and how to read it."""
        return (
            f"Seconds of the {self.which} pass while messages were under way, by rank: hidden behind work, and "
            f"exposed, in which the rank could only wait. The less is exposed, the less the transfers cost."
        )

    def table(self) -> Table:
        """One row for each rank."""
        arrays = (self.flight, self.wait, self.hidden, self.by_rank)
        rows = [(r, *(float(array[r]) for array in arrays)) for r in range(len(self.ranks))]
        return Table(("rank", "flight_s", "exposed_s", "hidden_s", "hidden_share"), rows)

    def plot(self, axes: Any = None, *, style: Style = LIGHT) -> Any:
        """Draw a bar for each rank; returns the matplotlib Axes. ConfigError if matplotlib is not installed."""
        return draw_overlap(self.hidden, np.minimum(self.wait, self.flight), axes, style)


def timeline(source: Source, which: str = FORWARD) -> RunTimeline:
    """What every rank did in every ring step.

    Parameters
    ----------
    source : path or Results
    which : str
        "forward", "map" (what is recorded after it) or "backward".

    Raises
    ------
    ConfigError
        If `which` is none of them, or the run had no such pass.
    StorageError
        If the file is missing, damaged, or not a ringmpi output.
    """
    with opened(source) as results:
        ranks, found = rank_names(results.account.provenance), _pass_of(results, which)
        seconds = found.attend_seconds, found.wait_seconds, found.flight_seconds
        return RunTimeline(str(results.path), which, ranks, *seconds, found.bytes_sent, found.pairs_attended)


def overlap(source: Source, which: str = FORWARD) -> Overlap:
    """How far work hid the transfers; parameters and errors as `timeline`."""
    whole = timeline(source, which)
    return Overlap(whole.path, which, whole.ranks, whole.flight.sum(axis=1), whole.wait.sum(axis=1))


def passes_of(account: Account) -> dict[str, PassTimeline]:
    """The counters of the passes that the run has made, by name, in their order."""
    passes: dict[str, PassTimeline] = {FORWARD: account.timeline}
    if account.late is not None and account.late.timeline is not None:
        passes[MAP] = account.late.timeline
    if account.backward is not None:
        passes[BACKWARD] = account.backward.timeline
    return passes


def _pass_of(results: Results, which: str) -> PassTimeline:
    """The counters of a pass; ConfigError where there is none of that name."""
    passes = passes_of(results.account)
    if which not in ASKED_BY:
        raise ConfigError(f'which = "{which}": expected one of {", ".join(ASKED_BY)}.')
    if which not in passes:
        raise ConfigError(f"{results.path} has no {which} pass: run with {ASKED_BY[which]}.")
    return passes[which]


def rank_names(provenance: Provenance) -> tuple[str, ...]:
    """Each rank with its node, and with its launch rank where that is another."""
    return tuple(
        rank_name(rank, launch_rank, node)
        for rank, (launch_rank, node) in enumerate(zip(provenance.ring_order, provenance.hosts, strict=True))
    )
