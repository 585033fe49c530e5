"""`ringmpi bench`: how fast and how exact ringmpi is here, beside others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ringmpi.cli.bench_options import (
    CONTENDERS,
    cases_of,
    check_contenders,
    check_gpu,
    outputs,
    peer_python,
    problems,
    threads,
    told,
    words,
)
from ringmpi.cli.bench_ranks import hop_command, ring_command


@click.group("bench", short_help="Measure: kernels, hops, rings, files, exactness.")
def bench_command() -> None:
    """Measure how fast and how exact ringmpi is here, compared with others and with what the machine can do.

    Rounds are interleaved: whatever slows the machine slows all. Figures are medians, in brackets the interval that
    contains the median with 95 % confidence. Peers are other libraries; pip install -e ".[bench]" in the folder of
    pyproject.toml brings them, or --peer-python names a Python that has one.

    \b
    Example:
      ringmpi bench kernel --shapes 8x4096x64,8/2x4096x64 --threads 1,2
      ringmpi bench ring --ranks 1,2,4 --peer torch
      mpirun -n 4 ringmpi bench hop
    """  # noqa: D301 - click wants the character \b itself


@bench_command.command(
    "kernel", short_help="Attention in one process, beside peers, matrix products and the processor."
)
@problems
@click.option(
    "--threads", default="1", show_default=True, callback=threads, metavar="N[,...]", help="Threads of each contender."
)
@click.option("--backward", is_flag=True, help="Time the backward pass alone, too.")
@click.option(
    "--contenders",
    default=CONTENDERS,
    show_default=True,
    callback=words,
    metavar="NAME[,...]",
    help="Backends of ringmpi, peers, and naive: the formula in NumPy.",
)
@peer_python
@outputs
def kernel_command(
    shapes: list[str], masks: list[str], dtype: str, json_file: Path | None, plot: Path | None, **options: Any
) -> int:
    """Time attention in one process: flops per CPU second, beside peers and beside what the processor can do.

    Contenders cuda and torch-cuda compute on a GPU, where their arrays are: flops per second of wall time.

    \b
    Example:
      ringmpi bench kernel --shapes 8x4096x64,4x8192x128 --backward
      ringmpi bench kernel --threads 1,2 --peer-python torch=/opt/torch/bin/python --json kernel.json
      ringmpi bench kernel --shapes 32x8192x128 --dtype bfloat16 --contenders cuda,torch-cuda
    """  # noqa: D301 - click wants the character \b itself
    from dataclasses import replace

    from ringmpi.bench.kernel import bench_kernel

    passes = (False, True) if options.pop("backward") else (False,)
    cases = [replace(case, backward=backward) for case in cases_of(shapes, masks, dtype) for backward in passes]
    check_contenders(options["contenders"])
    check_gpu(options["contenders"], options["pythons"])
    return told(bench_kernel(cases, **options), json_file, plot)


@bench_command.command("io", short_help="Shard files, their merge and reading, beside the disk itself.")
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False, exists=True), default=Path(), help="Where to write."
)
@click.option("--size", type=click.IntRange(min=1), default=256, show_default=True, help="Size of the output, MB.")
@click.option(
    "--shards", type=click.IntRange(min=1), default=4, show_default=True, help="Number of shards, one per rank."
)
@outputs
def io_command(json_file: Path | None, plot: Path | None, **options: Any) -> int:
    """Time what a run does with its output, and what reading it takes, beside plain files of the same bytes.

    \b
    Example:
      ringmpi bench io --folder /scratch --size 4096
    """  # noqa: D301 - click wants the character \b itself
    from ringmpi.bench.disk import bench_disk

    return told(bench_disk(**options), json_file, plot)


@bench_command.command("exactness", short_help="Small problems on which attention goes wrong, given to all.")
@click.option("--cases", callback=words, default="", metavar="CASE[,...]", help="Default: all.")
@click.option("--contenders", default=CONTENDERS, show_default=True, callback=words, metavar="NAME[,...]")
@peer_python
@click.option("--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Write all of it.")
def exactness_command(cases: list[str], contenders: list[str], pythons: dict[str, str], json_file: Path | None) -> int:
    """Judge ringmpi and its peers by one bound: rows without keys, hidden NaN, documents, long sums, 16 bit.

    Each is called through its own documented interface; what it cannot express is "not supported", not wrong.

    \b
    Example:
      ringmpi bench exactness --peer-python torch=/opt/torch/bin/python
    """  # noqa: D301 - click wants the character \b itself
    from ringmpi.bench.exactness import bench_exactness
    from ringmpi.bench.hard import HARD

    if unknown := [name for name in cases if name not in HARD]:
        raise click.UsageError(f"no case {', '.join(unknown)}; there are: {', '.join(HARD)}.")
    check_contenders(contenders)
    check_gpu(contenders, pythons)
    return told(bench_exactness(cases or list(HARD), contenders, pythons), json_file, None)


bench_command.add_command(hop_command)
bench_command.add_command(ring_command)
