"""`ringmpi bench hop`: what a hop between neighbours takes, and how much of it hides behind a kernel.

All ranks send to the next one at once, as in a ring step. MPI moves large messages only while it is called, so a hop
beside a kernel is timed twice: with the backend polling MPI while it computes, as in every run, and without.
"""

from __future__ import annotations

from typing import Any

from ringmpi.bench.figures import figure, rate
from ringmpi.bench.report import Report, Row

TERMS = {
    "hop": "seconds from posting to landing on the slowest rank, all ranks sending at once",
    "bandwidth": "bytes that each rank sends, and receives, per second",
    "hidden": "share of the hop alone that a kernel of twice its time leaves no trace of: 1 - seconds waited / hop",
}


def hop_report(settings: dict[str, Any], found: dict[str, Any], facts: dict[str, Any]) -> Report:
    """What `hop_ranks.on_ranks` has found, as a Report."""
    rows = []
    for nbytes, seconds in found["alone"]:
        hop = figure("s", seconds)
        figures = {"hop": hop, "bandwidth": rate(nbytes / 1e9, hop, "GB/s")}
        rows.append(Row(subject={"message": f"{nbytes:,} B", "beside": "nothing"}, figures=figures))
    for nbytes, beside, hidden in found["beside"]:
        subject = {"message": f"{nbytes:,} B", "beside": f"a kernel, {beside}"}
        rows.append(Row(subject=subject, figures={"hidden": figure("", hidden)}))
    return Report(
        bench="hop", main="bandwidth", settings=settings | found["job"], terms=TERMS, machine=facts, rows=rows
    )
