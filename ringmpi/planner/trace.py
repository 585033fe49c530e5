"""Who does what in each ring step, in words: "step 1: rank 0 idle, ranks 1-3 full"."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from ringmpi.core.sharding import Shard
from ringmpi.numbers import counted, percent
from ringmpi.planner.balance import shares
from ringmpi.planner.plan import Plan

GROUPS_SHOWN = 6
RANGES_SHOWN = 3


def trace(plan: Plan, steps: int) -> list[str]:
    """One line for each of the first `steps` steps."""
    table = shares(plan.problem, plan.tables, min(steps, plan.tables.steps))
    return [f"step {step}: {_who(row.tolist(), at_home=step == 0)}" for step, row in enumerate(table.T)]


def ranges_in_words(shard: Shard) -> str:
    """A shard's positions: "0-99,999", a stride as "0, 4, 8 ... 396"."""
    words = [_range(part) for part in shard[:RANGES_SHOWN]]
    more = [f"and {len(shard) - RANGES_SHOWN} ranges more"] if len(shard) > RANGES_SHOWN else []
    return "; ".join(words + more) or "none"


def _range(part: range) -> str:
    if part.step == 1 or len(part) == 1:
        return f"{part.start:,}-{part[-1]:,}"
    return ", ".join(f"{position:,}" for position in part[:RANGES_SHOWN]) + f" ... {part[-1]:,}"


def _who(row: list[float], *, at_home: bool) -> str:
    labels = [_label(share, at_home=at_home) for share in row]
    groups = [(label, [rank for rank, _ in members]) for label, members in groupby(enumerate(labels), lambda m: m[1])]
    if len(groups) <= GROUPS_SHOWN:
        return ", ".join(f"{_ranks(ranks)} {label}" for label, ranks in groups)
    return ", ".join(_summary(row))


def _summary(row: list[float]) -> Iterable[str]:
    busy = [share for share in row if 0 < share < 1]
    for count, what in ((row.count(0.0), "idle"), (row.count(1.0), "full")):
        if count:
            yield f"{counted(count, 'rank')} {what}"
    if busy:
        yield f"{counted(len(busy), 'rank')} {_percent(min(busy))} to {_percent(max(busy))}"


def _label(share: float, *, at_home: bool) -> str:
    if share == 0:
        return "idle"
    if share == 1:
        return "full"
    return f"diagonal ({_percent(share)})" if at_home else _percent(share)


def _percent(share: float) -> str:
    """In whole percents, so that ranks with about the same share stay together."""
    return percent(round(share, 2)) if 0.005 <= share < 0.995 else ("< 1 %" if share < 0.5 else "> 99 %")


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"
