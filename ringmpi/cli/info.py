"""`ringmpi info`: the environment, to be pasted into a report of a fault. Needs no MPI."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click


@click.command("info", short_help="Describe the environment, for a report of a fault.")
@click.option("--json", "as_json", is_flag=True, help="Write it as one JSON object to stdout.")
def info_command(as_json: bool) -> None:
    """Describe what ringmpi runs on: cores and memory as they are allowed here, MPI, HDF5, NumPy, GPUs, Slurm.

    What is missing for what comes last, with the command that helps. No user names, host names, tokens or homes are in
    it. MPI is started in a child process, which is given 20 s. Call it without mpirun, on the node in question.

    \b
    Example:
      ringmpi info
      srun -n 1 ringmpi info --json
    """  # noqa: D301 - click wants the character \b itself
    from ringmpi.environment.report import environment_report

    report = environment_report()
    if as_json:
        click.echo(json.dumps(report, allow_nan=False))
        return
    for line in lines(report):
        click.echo(line)


def lines(report: dict[str, Any]) -> Iterator[str]:
    """The report as text, a line a fact."""
    for section, facts in report.items():
        if section == "missing":
            yield "missing" if facts else "missing: nothing"
            yield from (f"  - {sentence}" for sentence in facts)
        elif facts:
            yield section
            for name, value in facts.items():
                yield f"  {name}: {_nothing(section, name) if value is None else _text(value)}"
        else:
            yield f"{section}: none"


def _text(value: Any) -> str:
    """A fact in words."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(entry)}" for key, entry in value.items()) or "none"
    if isinstance(value, list):
        return "; ".join(map(_text, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _nothing(section: str, name: str) -> str:
    """What None says."""
    if section == "packages" or name == "CuPy":
        return "not installed"
    return "no limit" if name.endswith(("by cgroups", "space allowed")) else "unknown"
