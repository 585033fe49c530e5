"""Who slows the ring, and what that costs: a ring is as fast as its slowest rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.analysis.opened import Source, opened
from ringmpi.analysis.options_used import options_of
from ringmpi.analysis.rank_charts import draw_speeds
from ringmpi.analysis.ring_clock import RingClock, ring_clock
from ringmpi.analysis.tables import Table
from ringmpi.analysis.timelines import passes_of, rank_names
from ringmpi.core.schedule import Schedule, schedule_by_name
from ringmpi.errors import ConfigError
from ringmpi.numbers import counted
from ringmpi.plotting import LIGHT, Style
from ringmpi.storage.account import Account
from ringmpi.storage.results import Results

CANDIDATES = 8  # ranks with most seconds too many, of which the cost is computed
SLOWER = 1.05  # times the others, from which a rank stands out ...
COSTS = 0.05  # ... if it costs so much of the passes, too, ...
SHORTEST = 1.0  # ... and these took so many seconds: below, noise decides
LINK_COSTS = 0.01  # of the passes, from which a link is named


@dataclass(frozen=True)
class SlowLink:
    """The link of the ring that ranks waited for most, after both its ends were ready.

    Attributes
    ----------
    sender, receiver : int
        Ring positions.
    label : str
        Both with their nodes.
    exposed_seconds : float
        That the receiver waited for transfers, over all steps.
    """

    sender: int
    receiver: int
    label: str
    exposed_seconds: float


@dataclass(frozen=True, eq=False)
class SlowRank:
    """The rank that slowed the ring most, and what it cost.

    Attributes
    ----------
    path : str
    rank, launch_rank : int
        Its position in the ring, and the number that the launcher gave it.
    node : str
    label : str
        All three in words.
    slowdown : float
        Its seconds per pair over the median of the other ranks.
    cost_seconds : float
        The passes would have taken so much less, had it been as fast as that median.
    pass_seconds : float
        All passes as they were, reading and writing not included.
    stands_out : bool
        Whether it is slower by 5 % or more, costs 5 % of the passes or more, and these took 1 s or more: noise makes
        ranks of short passes differ. If not, no rank is to blame.
    seconds_per_pair : float64 [ranks], seconds
        Over all passes; nan for a rank without pairs.
    ranks : tuple of str [ranks]
    link : SlowLink or None
        None where no rank waited for a transfer, or messages do not go along the ring.
    crowded : str
        Nodes with more threads of ranks than cores, in words; empty where none is known.
    """

    path: str
    rank: int
    launch_rank: int
    node: str
    label: str
    slowdown: float
    cost_seconds: float
    pass_seconds: float
    stands_out: bool
    seconds_per_pair: NDArray[np.float64]
    ranks: tuple[str, ...]
    link: SlowLink | None
    crowded: str = ""

    @property
    def words(self) -> str:
        """The finding in plain sentences."""
        total = f"The passes took {self.pass_seconds:.3g} s."
        if self.stands_out:
            text = (
                f"The slowest rank is {self.label}: it took {self.slowdown:.2f} times as long per pair as the "
                f"median of the others. {total} Had it been as fast as these, they would have taken "
                f"{self.cost_seconds:.3g} s less."
            )
        else:
            text = f"No rank stands out: the slowest, {self.label}, costs {self.cost_seconds:.3g} s. {total}"
            if self.pass_seconds < SHORTEST:
                text += f" Ranks of passes under {SHORTEST:g} s differ by chance."
        if self.link is not None and self.link.exposed_seconds >= LINK_COSTS * self.pass_seconds:
            text += f" The slowest link is {self.link.label}: {self.link.exposed_seconds:.3g} s of waiting for it."
        return f"{text} {self.crowded}" if self.crowded else text

    @property
    def caption(self) -> str:
        """What the picture shows, and how to read it."""
        return (
            "Time in the kernels per (query, key) pair by rank, in nanoseconds; the line is the median. A rank above "
            "it is slower than the others at the same work, and the whole ring waits for it."
        )

    def table(self) -> Table:
        """One row for each rank."""
        rows = [(r, float(seconds)) for r, seconds in enumerate(self.seconds_per_pair)]
        return Table(("rank", "seconds_per_pair"), rows)

    def plot(self, axes: Any = None, *, style: Style = LIGHT) -> Any:
        """Draw a bar for each rank; returns the matplotlib Axes. ConfigError if matplotlib is not installed."""
        return draw_speeds(self.seconds_per_pair, self.rank if self.stands_out else None, axes, style)


def slow_rank(source: Source) -> SlowRank:
    """The rank that slowed the ring most, and the seconds that it cost.

    One slow device slows all, since all wait for what it passes on. Of the ranks that took longer per pair than
    the median of the others, this is the one without whose slowness the passes would have taken least
    (analysis/ring_clock.py). Times are wall-clock times, so a process that was stopped, or shared cores, is seen too.

    Parameters
    ----------
    source : path or Results

    Raises
    ------
    ConfigError
        If the run had one rank, or fewer than two that attended to any pair: there is nothing to compare with.
    StorageError
        If the file is missing, damaged, or not a ringmpi output.
    """
    with opened(source) as results:
        provenance, ranks = results.account.provenance, rank_names(results.account.provenance)
        schedule, passes = _schedule(results), list(passes_of(results.account).values())
        clocks = [ring_clock(timeline, schedule) for timeline in passes]
        slowdowns = np.stack([_slowdowns(t.attend_seconds.sum(1), t.pairs_attended.sum(1)) for t in passes])
        if np.isfinite(slowdowns).sum(axis=1).max() < 2:
            raise ConfigError(
                f"{results.path}: fewer than two ranks attended to pairs; there is nothing to compare with."
            )
        rank, cost = _most_costly(clocks, slowdowns)
        attend = np.array([clock.attend.sum(axis=1) for clock in clocks]).sum(axis=0)
        pairs = sum(timeline.pairs_attended.sum(axis=1) for timeline in passes)
        slowdown = float(_slowdowns(attend, pairs)[rank])
        seconds = sum(clock.seconds for clock in clocks)
        return SlowRank(
            path=str(results.path),
            rank=rank,
            launch_rank=provenance.ring_order[rank],
            node=provenance.hosts[rank],
            label=ranks[rank],
            slowdown=slowdown,
            cost_seconds=cost,
            pass_seconds=seconds,
            stands_out=slowdown >= SLOWER and cost >= COSTS * seconds and seconds >= SHORTEST,
            seconds_per_pair=_per_pair(attend, pairs),
            ranks=ranks,
            link=_slow_link(clocks, ranks, schedule),
            crowded=_crowded(results.account),
        )


def _schedule(results: Results) -> Schedule:
    """The schedule that the run used."""
    if results.account.computed_by is not None:
        return schedule_by_name(results.account.computed_by.schedule)
    options = options_of(results)
    in_order = bool(options.get("ring.reproducible", False))
    return schedule_by_name(str(options.get("ring.schedule", "auto")), in_order=in_order)


def _crowded(account: Account) -> str:
    """Which nodes had more threads of ranks than cores: there ranks take time from each other."""
    if (found := account.computed_by) is None:
        return ""
    threads, cores = dict[str, int](), dict[str, int]()
    for node, count, shared in zip(account.provenance.hosts, found.threads, found.node_cores, strict=True):
        threads[node] = threads.get(node, 0) + count
        cores[node] = max(cores.get(node, 0), shared)
    crowded = [node for node, count in threads.items() if count > cores[node]]
    if not crowded:
        return ""
    first = crowded[0]
    more = f" (and {len(crowded) - 1:,} more nodes)" if len(crowded) > 1 else ""
    return (
        f"Node {first} had {threads[first]:,} threads on {counted(cores[first], 'core')}{more}: ranks there compete "
        f"for time, so their speeds differ."
    )


def _per_pair(attend: NDArray[np.float64], pairs: NDArray[np.int64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(pairs > 0, attend / pairs, np.nan)


def _slowdowns(attend: NDArray[np.float64], pairs: NDArray[np.int64]) -> NDArray[np.float64]:
    """Seconds a pair of each rank over the median of the others; nan for a rank that cannot be compared."""
    rates = _per_pair(attend, pairs)
    ordered = np.sort(rates[np.isfinite(rates)])
    found = np.full(len(rates), np.nan)
    for rank in np.flatnonzero(np.isfinite(rates)):
        others = np.delete(ordered, np.searchsorted(ordered, rates[rank]))
        if len(others) and (median := np.median(others)) > 0:
            found[rank] = rates[rank] / median
    return found


def _most_costly(clocks: Sequence[RingClock], slowdowns: NDArray[np.float64]) -> tuple[int, float]:
    """The rank whose slowness cost most, and the seconds. slowdowns: [passes, ranks]."""
    factors = np.where(slowdowns > 1, slowdowns, 1.0)
    attend = np.stack([clock.attend.sum(axis=1) for clock in clocks])
    excess = (attend * (1 - 1 / factors)).sum(axis=0)
    excess[~np.isfinite(slowdowns).any(axis=0)] = -1.0
    candidates = np.argsort(-excess, kind="stable")[:CANDIDATES].tolist()
    costs = {rank: _cost(clocks, factors[:, rank], rank) for rank in candidates if excess[rank] >= 0}
    rank = max(costs, key=lambda candidate: (costs[candidate], excess[candidate]))
    return rank, costs[rank]


def _cost(clocks: Sequence[RingClock], factors: NDArray[np.float64], rank: int) -> float:
    """Seconds that all passes would have taken less, had this rank been faster by these factors, one a pass."""
    saved = 0.0
    for clock, factor in zip(clocks, factors.tolist(), strict=True):
        attend = clock.attend.copy()
        attend[rank] /= factor
        saved += clock.seconds - clock.seconds_with(attend)
    return max(saved, 0.0)


def _slow_link(clocks: Sequence[RingClock], ranks: tuple[str, ...], schedule: Schedule) -> SlowLink | None:
    """The link that was waited for most.

    Its receiver waits for it; often its sender too, who may not use the memory before. So the sender's waits count
    half: enough to tell it from the link on the other side of the receiver, or of the sender.
    """
    waits = np.array([clock.exposed.sum(axis=1) for clock in clocks]).sum(axis=0)
    if not schedule.hand_to_hand or not waits.any():
        return None
    receiver = int(np.argmax(waits + np.roll(waits, 1) / 2))
    sender = (receiver - 1) % len(ranks)
    return SlowLink(sender, receiver, f"{ranks[sender]} to {ranks[receiver]}", float(waits[receiver]))
