"""A benchmark as a table for people."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ringmpi.bench.report import Report
from ringmpi.cli.printing import print_uncut


def show(report: Report, console: Console) -> None:
    """Print everything but the samples."""
    print_uncut(_verdicts(report) if report.verdicts() else _figures(report), console)
    said = {name for row in report.rows for name in (*row.figures, *row.subject.values(), row.verdict)}
    for name, meaning in report.terms.items():
        if name in said:
            console.print(f"[bold]{escape(name)}:[/bold] {escape(meaning)}")
    for row in report.rows:
        if row.verdict and row.note:
            console.print(f"[bold]{escape(', '.join(row.subject.values()))}:[/bold] {escape(row.note)}")
    for name, reason in report.absent.items():
        console.print(f"[bold]not measured:[/bold] {escape(name)}: {escape(reason)}")


def _figures(report: Report) -> Table:
    """A row what was measured, a column a figure. What all rows share stands in the title."""
    subjects, figures = report.subjects(), report.figures()
    notes = any(row.note for row in report.rows)
    table = _titled(report, [f"{name} {value}" for name, value in report.shared().items()])
    for name in (*subjects, *figures, *["note"] * notes):
        table.add_column(name, justify="right" if name in figures else "left", no_wrap=True)
    for row in report.rows:
        cells = [row.subject.get(name, "") for name in subjects]
        cells += [str(row.figures.get(name, "-")) for name in figures]
        table.add_row(*map(escape, [*cells, row.note] if notes else cells))
    return table


def _verdicts(report: Report) -> Table:
    """A row a case, a column a contender."""
    names = list(dict.fromkeys(row.subject["contender"] for row in report.rows))
    table = _titled(report, [])
    for name in ("case", *names):
        table.add_column(name, no_wrap=True)
    for case, found in report.verdicts().items():
        table.add_row(case, *(found.get(name, "-") for name in names))
    return table


def _titled(report: Report, shared: list[str]) -> Table:
    title = ", ".join([f"bench {report.bench}", *shared, report.where()])
    return Table(box=None, padding=(0, 1), title=escape(title), title_justify="left")
