"""Tables on stdout: for people, for the log of a job, for a pipe."""

from __future__ import annotations

from collections.abc import Callable

import click
from rich.console import Console
from rich.table import Table

NARROWEST = 100  # columns that text is folded at, also where a log or a pipe has no width
UNBOUNDED = 10_000


def print_results(show: Callable[[Console], None], *, markup: bool = False) -> None:
    """Print what `show` prints to a console; lines end without blanks."""
    width = max(Console().width, NARROWEST)
    console = Console(highlight=False, markup=markup, soft_wrap=True, width=width)
    with console.capture() as captured:
        show(console)
    for line in captured.get().removesuffix("\n").split("\n"):
        click.echo(line.rstrip())


def grid(names: str = "bold") -> Table:
    """Names, in this style, and what is said of them."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style=names, no_wrap=True)
    table.add_column(overflow="fold")
    return table


def print_uncut(table: Table, console: Console) -> None:
    """Print a table as wide as its cells are: half a number is a wrong number."""
    unbounded = console.options.update(max_width=UNBOUNDED)
    table.width = console.measure(table, options=unbounded).maximum
    console.print(table)
