"""What the ranks did: timeline, who slows the ring, overlap, balance, memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringmpi import analysis
from ringmpi.analysis import RunTimeline, SlowRank, Summary, Table
from ringmpi.core.stages import FORWARD
from ringmpi.errors import ConfigError
from ringmpi.numbers import percent, ratio, seconds, size
from ringmpi.report.beside import Beside
from ringmpi.report.page import Block, Section, Text
from ringmpi.storage.results import Results

MOST_LINES = 250_000  # of a table


def timeline_section(results: Results, summary: Summary, slow: SlowRank | None, beside: Beside) -> Section:
    """Seconds by rank and ring step of every pass, and who slows the ring."""
    blocks: list[Block] = []
    if summary.part_timed:
        blocks.append(Text(f"Here, in overlap, balance and memory: {summary.part_timed}, not those before it."))
    if slow is not None:
        blocks.append(Text(slow.words, "finding"))
    for which in summary.pass_seconds:
        found = analysis.timeline(results, which)
        name = _name("timeline", which)
        csv = beside.table(name, *timeline_table(found))
        blocks.append(beside.picture(name, f"Timeline, {which} pass", found, files=[csv], shape=_shape(found.ranks)))
    if slow is not None:
        blocks.append(_picture(beside, "slow-rank", "Time per pair, by rank", slow))
    else:
        blocks.append(Text("Fewer than two ranks worked, so none of them slows the others.", "quiet"))
    return Section("timeline", "Timeline", blocks)


def overlap_section(results: Results, passes: Sequence[str], beside: Beside) -> Section:
    """How much of the messages' time work hid."""
    blocks: list[Block] = []
    for which in passes:
        found = analysis.overlap(results, which)
        if found.share is None:
            blocks.append(Text(f"No messages travelled in the {which} pass: nothing to hide.", "quiet"))
            continue
        exposed = float(found.wait.sum() / len(found.ranks))
        blocks.append(
            Text(
                f"In the {which} pass {percent(found.share)} of the time of messages was hidden behind work. A rank "
                f"waited {seconds(exposed)} on average for a hop that had not landed.",
                "finding",
            )
        )
        blocks.append(_picture(beside, _name("overlap", which), f"Overlap by rank, {which} pass", found))
    return Section("overlap", "Overlap", blocks)


def balance_section(results: Results, passes: Sequence[str], beside: Beside) -> Section:
    """Whether all ranks had as much to do."""
    blocks: list[Block] = []
    if len(results.account.provenance.hosts) == 1:
        return Section("balance", "Balance", [Text("One rank has all the work.", "quiet")])
    for which in passes:
        found = analysis.balance(results, which)
        blocks.append(
            Text(
                f"In the {which} pass the busiest rank has {ratio(found.pairs_ratio)} times the mean number of pairs "
                f"and works {ratio(found.attend_ratio)} times the mean time. 1 is perfect balance.",
                "finding",
            )
        )
        blocks.append(_picture(beside, _name("balance", which), f"Balance, {which} pass", found))
    return Section("balance", "Balance", blocks)


def memory_section(results: Results, beside: Beside) -> Section:
    """The largest resident memory of each rank."""
    found = analysis.memory(results)
    if len(found.ranks) == 1:
        return Section("memory", "Memory", [Text(f"The rank held {size(found.largest)}.", "finding")])
    text = f"The largest rank held {size(found.largest)}, {ratio(found.ratio)} times the mean."
    return Section("memory", "Memory", [Text(text, "finding"), _picture(beside, "memory", "Memory by rank", found)])


def slowest(results: Results) -> SlowRank | None:
    """Who slows the ring; None where fewer than two ranks worked."""
    try:
        return analysis.slow_rank(results)
    except ConfigError:  # there is nobody to compare with
        return None


def _picture(beside: Beside, name: str, title: str, found: Any) -> Block:
    table = found.table()
    csv = beside.table(name, table.columns, table.rows)
    return beside.picture(name, title, found, files=[csv], shape=_shape(found.ranks))


def timeline_table(found: RunTimeline) -> Table:
    """A line per rank and ring step; of thousands of ranks, which have millions of these, a line per rank."""
    if found.attend.size <= MOST_LINES:
        return found.table()
    columns = ("rank", "attend_s", "wait_s", "flight_s", "bytes_sent", "pairs")
    sums = (a.sum(axis=1).tolist() for a in (found.attend, found.wait, found.flight, found.bytes_sent, found.pairs))
    return Table(columns, list(zip(range(len(found.ranks)), *sums, strict=True)))


def _shape(ranks: Sequence[str]) -> float:
    """How high a picture of so many ranks is."""
    return min(max(1.0, len(ranks) / 12), 2.0)


def _name(what: str, which: str) -> str:
    return what if which == FORWARD else f"{what}-{which}"
