"""`ringmpi run`: one run, under mpirun or srun."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ringmpi.cli.streams import shown
from ringmpi.comm.deadline import TIMEOUT_SECONDS
from ringmpi.errors import FAILED, STOPPED, StorageError

if TYPE_CHECKING:
    from ringmpi.job.run import EarlyEnd, Report


def _check_seconds(_context: click.Context, _parameter: click.Parameter, seconds: float) -> float:
    if 0 <= seconds < math.inf:
        return seconds
    raise click.BadParameter(f"{seconds} s; it must be finite and >= 0; 0 waits forever.")


_SHOWN = (
    click.option("--json", "as_json", is_flag=True, help="Write the result as one JSON object to stdout."),
    click.option("--quiet", is_flag=True, help="Log only warnings and errors, and no progress."),
)


def _show_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add to a command what it shows: `as_json` and `quiet`."""
    for option in reversed(_SHOWN):
        command = option(command)
    return command


@click.command("run", short_help="Compute the attention that RUN.toml describes.")
@click.argument("run_toml", type=click.Path(path_type=Path))
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override what RUN.toml says, for example --set attention.mask=full or "
    "--set 'attention.mask={window=[511,0]}'. May be given more than once; VALUE is TOML or a bare word.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Resume from the newest checkpoint, on any number of ranks, or start if there is none. Does nothing "
    "where the output already exists. Needs [checkpoint].",
)
@click.option(
    "--force",
    is_flag=True,
    help="Overwrite an output file that exists, and remove checkpoints of a run that has not ended. Default: refuse.",
)
@click.option(
    "--timeout",
    type=float,
    default=TIMEOUT_SECONDS,
    show_default=True,
    callback=_check_seconds,
    metavar="SECONDS",
    help="Stop all ranks when one waits longer than this for another. 0: wait forever.",
)
@_show_options
def run_command(
    run_toml: Path,
    overrides: tuple[str, ...],
    resume: bool,
    force: bool,
    timeout: float,
    **show: bool,
) -> int:
    """Compute the attention that RUN.toml describes, on all ranks of this MPI job.

    The result goes to the file that [output] names; a summary to stdout, logs to stderr.

    \b
    Example:
      mpirun -n 4 ringmpi run run.toml --set ring.sharding=zigzag
      srun ringmpi run run.toml --force --timeout 1800
      srun ringmpi run --resume run.toml

    \b
    Smallest RUN.toml:
      [input]
      file = "in.h5"
      query = "q"
      key = "k"
      value = "v"
      [output]
      file = "out.h5"
    """  # noqa: D301 - click wants the character \b itself
    from ringmpi.comm.lifetime import mpi_job

    if resume and force:
        raise click.UsageError("--resume goes on from a checkpoint, --force starts over; give one of them.")

    with mpi_job(timeout):  # before anything that imports mpi4py's MPI, which would start it without a limit
        from ringmpi.checkpoint.lifecycle import Again
        from ringmpi.job.run import run

        again = Again(resume=resume, force=force)
        exit_code, report = run(run_toml, overrides=overrides, again=again, timeout=timeout, quiet=show["quiet"])
        return exit_code if report is None else _show(report, as_json=show["as_json"])


def _show(report: Report | EarlyEnd, *, as_json: bool) -> int:
    """Show what a run has done; its exit code, or FAILED where all is well but stdout. No other rank waits for it."""
    from ringmpi.cli import summary
    from ringmpi.cli.printing import print_results

    try:
        with shown(made="" if report.exit_code == STOPPED else report.config.output.file):
            if as_json:
                click.echo(json.dumps(summary.as_dict(report), allow_nan=False))
            else:
                print_results(partial(summary.show, report))
    except StorageError as error:
        with suppress(OSError):
            click.echo(f"ringmpi: error: {error}", err=True)
        return report.exit_code or FAILED
    return report.exit_code
