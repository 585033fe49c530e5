"""Several outputs beside each other: a line each, and how the time scales with the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ringmpi import analysis
from ringmpi.analysis import NotRecordedError, Profile
from ringmpi.errors import ConfigError
from ringmpi.numbers import decimal, percent, seconds
from ringmpi.report.beside import Beside
from ringmpi.report.overview import shortened
from ringmpi.report.page import Block, Missing, Section, Table
from ringmpi.storage.results import Results

COLUMNS = ("output", "ranks", "queries", "mask", "passes", "exact", "entropy, nats", "distance", "on first keys")


def several_section(paths: Sequence[Path], beside: Beside) -> Section:
    """The outputs in a table, and their scaling where it is one."""
    lines = [_line(path) for path in paths]
    csv = beside.table("outputs", COLUMNS, lines)
    shown = [_shown(line) for line in lines]
    blocks: list[Block] = [
        Table("outputs", "The outputs, as they were given", COLUMNS, shown, (1, 2, 4, 6, 7, 8), [csv])
    ]
    try:
        found = analysis.scaling(paths)
    except ConfigError as error:
        return Section("outputs", "Several outputs", [*blocks, Missing(f"No scaling is shown: {error}")])
    table = found.table()
    csv = beside.table("scaling", table.columns, table.rows)
    blocks.append(beside.picture("scaling", f"Efficiency over {found.unit}s", found, files=[csv]))
    return Section("outputs", "Scaling", blocks)


def _line(path: Path) -> tuple[Any, ...]:
    """Numbers of one output, in the order of COLUMNS; nan where something was not recorded."""
    with Results(path) as results:
        summary = analysis.summary(results)
        means = [_mean(function, results) for function in (analysis.entropy, analysis.distance, analysis.sinks)]
    mask = summary.mask
    passes = float(sum(summary.pass_seconds.values()))
    exact = "exact" if summary.exact else "NOT EXACT"
    return (str(path), summary.ranks, summary.query_length, mask, passes, exact, *means)


def _shown(line: tuple[Any, ...]) -> tuple[str, ...]:
    path, ranks, queries, mask, passes, exact, entropy, distance, on_first = line
    counts = f"{ranks:,}", f"{queries:,}"
    return (
        path,
        *counts,
        shortened(mask),
        seconds(passes),
        exact,
        decimal(entropy),
        decimal(distance),
        percent(on_first),
    )


def _mean(function: Callable[..., Profile], results: Results) -> float:
    """Over all rows and heads."""
    try:
        return float(function(results).overall.mean())
    except NotRecordedError:
        return float("nan")
