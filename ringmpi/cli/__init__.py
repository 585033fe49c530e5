"""The command line: one small module a subcommand.

Help must be instant on a login node, so this package imports click only; a subcommand imports what it needs when it
runs. stdout carries results, stderr everything else.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from ringmpi import __version__
from ringmpi.cli.analyze import analyze_command
from ringmpi.cli.bench import bench_command
from ringmpi.cli.export import export_command
from ringmpi.cli.info import info_command
from ringmpi.cli.inspect import inspect_command
from ringmpi.cli.plan import plan_command
from ringmpi.cli.run import run_command
from ringmpi.cli.streams import drop_what_is_left, open_streams
from ringmpi.cli.topology import topology_command
from ringmpi.cli.verify import verify_command
from ringmpi.comm.launcher import end_job, launched_rank
from ringmpi.environment.missing import of_import
from ringmpi.errors import FAILED, INTERRUPTED, USAGE_ERROR, RingMpiError

RUN_MODULE = "ringmpi.job.run"  # once it is loaded, other ranks wait for this one

__all__ = ["exit_code", "main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="ringmpi %(version)s")
def commands() -> None:
    """Exact attention over long sequences, on a ring of MPI ranks.

    \b
    Example:
      mpirun -n 4 ringmpi run run.toml
      ringmpi verify out.h5
      ringmpi analyze out.h5 -o report

    \b
    Exit codes:
      0    all is well
      1    a check failed: the output is not what it should be
      2    an invalid configuration or command line
      3    a resource, file or MPI failure
      4    stopped by a signal or a request, with its state saved: start again with run --resume
      130  stopped from the keyboard, and nothing is saved
      143  stopped by SIGTERM, and nothing is saved
    """  # noqa: D301 - click wants the character \b itself


commands.add_command(plan_command)
commands.add_command(run_command)
commands.add_command(verify_command)
commands.add_command(inspect_command)
commands.add_command(export_command)
commands.add_command(analyze_command)
commands.add_command(bench_command)
commands.add_command(topology_command)
commands.add_command(info_command)


def main() -> None:
    """Run the command `ringmpi` and leave Python with its exit code."""
    open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file name that the terminal cannot show must not end a run
            stream.reconfigure(errors="backslashreplace")
    code = exit_code(sys.argv[1:])
    drop_what_is_left()
    sys.exit(code)


def exit_code(arguments: Sequence[str]) -> int:
    """Run `ringmpi ARGUMENTS`; return its exit code, errors told on stderr."""
    try:
        return int(commands.main(list(arguments), prog_name="ringmpi", standalone_mode=False) or 0)
    except SystemExit:  # of click, after the reader of a pipe has ended: its code 1 would say that a check failed
        return FAILED
    except click.ClickException as error:
        if launched_rank(os.environ) == 0:  # all ranks are told the same
            error.show()
        return USAGE_ERROR
    except click.Abort:
        _tell("stopped from the keyboard")
        return _ended(INTERRUPTED)
    except RingMpiError as error:
        if not error.said_elsewhere:
            _tell(str(error))
        return error.exit_code if error.on_all_ranks else _ended(error.exit_code)
    except MemoryError as error:
        reason = f": {error}" if str(error) else ""
        _tell(f"not enough memory{reason}. Ask for less at once, or use a larger machine.")
        return _ended(FAILED)
    except Exception as error:
        if sentence := _of_surroundings(error):
            _tell(sentence)
            return _ended(FAILED)
        sys.excepthook(*sys.exc_info())  # a fault of ringmpi itself
        return _ended(FAILED)


def _of_surroundings(error: Exception) -> str | None:
    """What to do where it is no fault of ringmpi: another Python, a folder that is gone."""
    if isinstance(error, ModuleNotFoundError):
        return of_import(error, sys.executable)
    try:
        Path.cwd()
    except FileNotFoundError:
        return "the working directory was deleted. Change to one that exists."
    return None


def _ended(code: int) -> int:
    """`code`, after the other ranks of a run have been ended, which cannot learn of what happened here."""
    if RUN_MODULE in sys.modules or "run" in sys.argv[1:2]:
        end_job(os.environ, code)
    return code


def _tell(message: str) -> None:
    if launched_rank(os.environ) and RUN_MODULE not in sys.modules:
        return  # `mpirun ringmpi verify`, say: rank 0 says it
    with suppress(OSError):  # stderr may be full, or nobody reads it: the exit code says it, too
        for line in message.splitlines() or ["stopped without a message"]:
            click.echo(f"ringmpi: error: {line}", err=True)
