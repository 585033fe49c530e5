"""`ringmpi bench hop` and `ringmpi bench ring`: benchmarks on several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ringmpi.cli.bench_options import cases_of, check_contenders, counts, outputs, peer_python, problems, told


@click.command("hop", short_help="Messages between neighbours, alone and beside a kernel.")
@click.option(
    "--sizes",
    default="8,4096,65536,1048576,16777216",
    show_default=True,
    callback=counts,
    metavar="BYTES[,...]",
    help="Sizes of messages.",
)
@click.option(
    "--ranks",
    type=click.IntRange(min=2),
    default=2,
    show_default=True,
    help="Number of ranks, unless a launcher sets it.",
)
@click.option(
    "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads per rank, for the kernel."
)
@click.option("--backend", default="auto", show_default=True, help="Backend of the kernel; messages are in its memory.")
@outputs
def hop_command(ranks: int, threads: int, json_file: Path | None, plot: Path | None, **settings: Any) -> int:
    """Time hops: latency, bandwidth, and how much of a hop hides behind a kernel, with and without polling.

    Alone it starts mpirun (or what MPIRUN says); under a launcher it uses the ranks of that job.

    \b
    Example:
      ringmpi bench hop
      srun -N 2 -n 2 ringmpi bench hop --json hop.json
    """  # noqa: D301 - click wants the character \b itself
    from ringmpi.bench import hop, hop_ranks, job
    from ringmpi.bench.machine import machine

    facts = machine() if job.speaks() else {}
    if job.under_launcher():
        found = job.in_this_job(hop_ranks.on_ranks, settings)
    else:
        found = job.in_a_job("ringmpi.bench.hop_ranks", ranks, threads, settings)
    return told(hop.hop_report(settings, found, facts), json_file, plot) if found else 0


@click.command("ring", short_help="One problem on several numbers of ranks, beside the plan and a peer.")
@problems
@click.option(
    "--ranks",
    default="1,2,4",
    show_default=True,
    callback=counts,
    metavar="N[,...]",
    help="Numbers of ranks, without a launcher.",
)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads per rank.")
@click.option(
    "--scaling",
    type=click.Choice(["strong", "weak"]),
    default="strong",
    show_default=True,
    help="weak: the length of --shapes is that on the most ranks, and as much shorter on fewer.",
)
@click.option("--backward/--forward", default=True, show_default=True, help="Both passes, or only the forward one.")
@click.option("--plan/--no-plan", "planned", default=True, show_default=True, help="Measure rates, and plan each case.")
@click.option("--sharding", default="zigzag", show_default=True)
@click.option("--backend", default="auto", show_default=True)
@click.option("--peer", help="Time it beside each ring, in one process with as many threads: torch, jax, ...")
@peer_python
@outputs
def ring_command(
    shapes: list[str], masks: list[str], dtype: str, json_file: Path | None, plot: Path | None, **options: Any
) -> int:
    """Time ring attention on several numbers of ranks: scaling, hiding, bytes, backward against forward.

    Alone it starts mpirun (or what MPIRUN says) for each number of ranks; under a launcher it uses the ranks of that
    job, without plan and peer.

    \b
    Example:
      ringmpi bench ring --shapes 8x8192x64,9/3x8192x64 --peer torch
      srun -N 8 -n 8 ringmpi bench ring --shapes 32/8x131072x128 --dtype bfloat16
    """  # noqa: D301 - click wants the character \b itself
    from ringmpi.bench import job, ring
    from ringmpi.bench.machine import machine
    from ringmpi.bench.peers import ON_GPU
    from ringmpi.bench.ring_report import ring_report

    planned, facts = options.pop("planned"), machine() if job.speaks() else {}
    if options["peer"] is not None:
        check_contenders([options["peer"]])
        if options["peer"] in ON_GPU:
            raise click.UsageError(f"{options['peer']} computes on one GPU; bench kernel times it.")
    wanted = ring.Wanted(cases_of(shapes, masks, dtype), **options)
    if job.under_launcher():
        wanted, measured = ring.measure_here(wanted)
        planned = False
    else:
        measured = ring.measure_jobs(wanted)
    return told(ring_report(wanted, measured, facts, planned=planned), json_file, plot) if measured.ranks else 0
