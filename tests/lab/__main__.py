"""The lab by hand: python -m tests.lab up, exec HOST COMMAND..., down."""

import os
import sys
from pathlib import Path

import click

from tests.lab.cluster import Cluster, LabError

FOLDER = Path("/run/ringmpi-lab/by-hand")


@click.group()
def lab() -> None:
    """Hosts as network namespaces, on one machine; see docs/how-to/lab.md."""


@lab.command()
@click.option("--hosts", default=8, show_default=True)
@click.option("--leaves", default=2, show_default=True)
@click.option("--rate", default="200mbit", show_default=True, help="Of a host's link; none: not shaped.")
@click.option("--uplink", default="200mbit", show_default=True, help="Of a leaf's link to the spine.")
def up(hosts: int, leaves: int, rate: str, uplink: str) -> None:
    """Start the lab, in place of one that was there."""
    Cluster(FOLDER).up(hosts, leaves, rate=rate, uplink=uplink, outlives=True)
    click.echo(f"hosts {' '.join(Cluster(FOLDER).hosts)}, state in {FOLDER}")


@lab.command()
def down() -> None:
    """End what runs in the lab, and remove it."""
    Cluster(FOLDER).down()


@lab.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("host")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(host: str, command: tuple[str, ...]) -> None:
    """Run a command on HOST (head, n0, n1, ...), in this folder."""
    words = [*Cluster(FOLDER).enter(host), *command]
    os.execvp(words[0], words)


if __name__ == "__main__":
    try:
        lab(standalone_mode=False)
    except (LabError, click.ClickException) as error:
        sys.exit(f"lab: {error}")
