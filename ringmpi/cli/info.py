"""`ringmpi info`: the environment, to be pasted into a report of a fault. Needs no MPI."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from ringmpi.cli.streams import shown


@click.command("info", short_help="Describe the environment, for a report of a fault.")
@click.option("--json", "as_json", is_flag=True, help="Write it as one JSON object to stdout.")
@click.option("--check", is_flag=True, help="Try what a run needs here, and give a verdict on each; within a minute.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Directory of outputs and checkpoints, for --check. Default: this one.",
)
def info_command(as_json: bool, check: bool, directory: Path) -> int:
    """Describe what ringmpi runs on: cores and memory as they are allowed here, MPI, HDF5, NumPy, GPUs, Slurm.

    What is missing for what comes last, with the command that helps. No user names, host names, tokens or homes are in
    it. MPI is started in a child process, which is given 20 s. Call it without mpirun, on the node in question.

    With --check two ranks are started and exchange messages, and 64 MiB are written: one verdict per line (ok, note,
    problem) and what to do. The exit code is 1 if there is a problem.

    \b
    Example:
      ringmpi info
      srun -n 1 ringmpi info --json
      ringmpi info --check --directory /scratch/me
    """  # noqa: D301 - click wants the character \b itself
    if check:
        return _check(directory, as_json)
    from ringmpi.environment.report import environment_report

    report = environment_report()
    with shown():
        if as_json:
            click.echo(json.dumps(report, allow_nan=False))
        for line in () if as_json else lines(report):
            click.echo(line)
    return 0


def _check(directory: Path, as_json: bool) -> int:
    """The verdicts, each on its line; 1 if there is a problem."""
    from ringmpi.environment.report import anonymous
    from ringmpi.environment.site import check_site

    verdicts = [anonymous(verdict._asdict(), os.environ) for verdict in check_site(directory)]
    with shown():
        if as_json:
            click.echo(json.dumps(verdicts))
        for verdict in () if as_json else verdicts:
            advice = f"\n{'':9}-> {verdict['advice']}" if verdict["advice"] else ""
            click.echo(f"{verdict['level']:8} {verdict['what']}: {verdict['found']}{advice}")
    return int(any(verdict["level"] == "problem" for verdict in verdicts))


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
    if name in ("CuPy", "NVRTC"):
        return "not installed (needed on GPUs alone)"
    if section == "packages":
        return "not installed"
    return "no limit" if name.endswith(("by cgroups", "space allowed")) else "unknown"
