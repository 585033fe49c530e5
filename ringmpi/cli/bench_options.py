"""Options that the benchmarks share, and what becomes of their reports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ringmpi.cli.dtypes import DTYPES
from ringmpi.cli.streams import shown

if TYPE_CHECKING:
    from ringmpi.bench.questions import Case
    from ringmpi.bench.report import Report

F = TypeVar("F", bound=Callable[..., Any])
CONTENDERS = "native,numpy,torch,onnxruntime,jax,naive"
ROUNDS = 9  # with so many, the interval between the second smallest and the second largest holds the median


def words(_context: click.Context, parameter: click.Parameter, text: str) -> list[str]:
    """Words with commas between; none only where that is the default."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    if parameter.default and not found:
        raise click.BadParameter(f"{text!r} is an empty list; the default is {parameter.default}.")
    return found


def counts(_context: click.Context, _parameter: click.Parameter, text: str) -> list[int]:
    """Whole numbers from 1, with commas between, ascending."""
    numbers = [number.strip() for number in text.split(",")]
    if not all(number.isdecimal() and int(number) for number in numbers):
        raise click.BadParameter(f"{text!r}: expected whole numbers from 1, as in 1,2,4.")
    return sorted(set(map(int, numbers)))


def threads(context: click.Context, parameter: click.Parameter, text: str) -> list[int]:
    """Numbers of threads, none above the cores of this process: more would measure how they wait for each other."""
    from ringmpi.process.cores import own_cores

    numbers, cores = counts(context, parameter, text), len(own_cores())
    if numbers[-1] > cores:
        raise click.BadParameter(f"{numbers[-1]}: this process may run on {cores} cores, so at most {cores} threads.")
    return numbers


def _pythons(_context: click.Context, _parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    found = dict(pair.partition("=")[::2] for pair in pairs)
    check_contenders(list(found))
    for name, path in found.items():
        if not Path(path).is_file():
            raise click.BadParameter(
                f"{name}={path}: expected PEER=PATH of a Python, as in torch=/opt/torch/bin/python."
            )
    return found


def outputs(command: F) -> F:
    """Where the figures go."""
    for option in (
        click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw them (png, svg, pdf)."),
        click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Write all of them."),
        click.option(
            "--rounds", type=click.IntRange(min=1), default=ROUNDS, show_default=True, help="Number of rounds."
        ),
    ):
        command = option(command)
    return command


def peer_python(command: F) -> F:
    """Where peers are."""
    return click.option(
        "--peer-python",
        "pythons",
        multiple=True,
        callback=_pythons,
        metavar="PEER=PATH",
        help="The Python that has this peer; default: this one. May be given more than once.",
    )(command)


def problems(command: F) -> F:
    """Shapes and masks."""
    for option in (
        click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True),
        click.option(
            "--mask",
            "masks",
            default="full,causal",
            show_default=True,
            callback=words,
            metavar="MASK[,...]",
            help="full, causal, window:W (itself and W before), documents:N (N causal ones).",
        ),
        click.option(
            "--shapes",
            default="8x4096x64",
            show_default=True,
            callback=words,
            metavar="SHAPE[,...]",
            help="HEADSxLENGTHxDIM, or QUERY_HEADS/KEY_HEADSxLENGTHxDIM.",
        ),
    ):
        command = option(command)
    return command


def cases_of(shapes: list[str], masks: list[str], dtype: str) -> list[Case]:
    """Every shape with every mask."""
    from ringmpi.bench.questions import Case, check_mask, parse_shape

    try:
        return [Case(*parse_shape(shape), mask=check_mask(mask), dtype=dtype) for shape in shapes for mask in masks]
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def told(report: Report, json_file: Path | None, plot: Path | None) -> int:
    """File, table and picture: what took long to measure is kept first."""
    from rich.console import Console

    from ringmpi.bench.picture import draw
    from ringmpi.cli.bench_table import show

    if json_file:
        report.write(json_file)
    with shown(json_file or ""):
        show(report, Console(highlight=False, soft_wrap=True))
    if plot:
        draw(report, plot)
    return 0


def check_gpu(names: list[str], pythons: dict[str, str]) -> None:
    """Refuse "cuda" where it has no GPU; another Python is asked when it has been started."""
    from ringmpi.backends.cuda.opening import why_not

    if "cuda" in names and "cuda" not in pythons and (reason := why_not()):
        raise click.UsageError(f"cuda: {reason}")


def check_contenders(names: list[str]) -> None:
    """Refuse names that nobody has."""
    from ringmpi.bench.peers import OWN, PEERS

    if unknown := [name for name in names if name not in OWN + PEERS]:
        raise click.UsageError(f"unknown contenders {', '.join(unknown)}; choose from {', '.join(OWN + PEERS)}.")
