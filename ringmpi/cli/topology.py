"""`ringmpi topology`: what a machine looks like, the best ring over the hosts of a job, files for launchers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ringmpi.cli.streams import shown

if TYPE_CHECKING:
    from ringmpi.topology.graph import Graph
    from ringmpi.topology.placement import Placement

EXPORTS = ("openmpi-rankfile", "slurm-hostfile", "mpich-rank-order", "hostfile")

files = click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="FILE...")
file_format = click.option("--format", "file_format", metavar="NAME", help="Format of the files; default: detected.")
job_hosts = click.option(
    "--hosts", metavar="HOSTLIST", help="The hosts in launch order, as in n[01-16,20]; default: all of the files."
)
ranks_per_host = click.option(
    "--ranks-per-host", type=click.IntRange(min=1), default=1, show_default=True, help="Number of ranks on each host."
)
as_json = click.option("--json", "as_json", is_flag=True, help="Write it as one JSON object to stdout.")


@click.group("topology", short_help="Show a machine, and lay a ring over the hosts of a job. Needs no MPI.")
def topology_command() -> None:
    """Show a machine, and lay a ring over the hosts of a job.

    FILEs say what the machine looks like: Slurm's topology.conf or topology.yaml, ibnetdiscover, hwloc and more.
    Several are combined.

    \b
    Example:
      ringmpi topology show topology.conf
      ringmpi topology place topology.conf --hosts 'n[01-16]'
      ringmpi topology export topology.conf --hosts 'n[01-16]' --to slurm-hostfile -o hosts.txt
    """  # noqa: D301 - click wants the character \b itself


@topology_command.command("show", short_help="Show what the files describe, and draw it.")
@files
@file_format
@job_hosts
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw it, with the ring (svg, png, pdf).")
def show_command(files: tuple[Path, ...], file_format: str | None, hosts: str | None, plot: Path | None) -> None:
    """Show what the files describe: hosts, switches, links, and what was not understood.

    With --hosts the ring over them is in the drawing, and how many blocks pass over each link in a ring step.
    """
    from ringmpi.cli.topology_view import graph_lines
    from ringmpi.topology.reading import read

    graph = read(files, file_format)
    with shown():
        for line in graph_lines(graph):
            click.echo(line)
    if plot:
        from ringmpi.topology.drawing import draw_ring

        draw_ring(graph, hosts_of(graph, hosts, 1), plot)


@topology_command.command("place", short_help="Find the best ring over the hosts of a job.")
@files
@file_format
@job_hosts
@ranks_per_host
@as_json
def place_command(
    files: tuple[Path, ...], file_format: str | None, hosts: str | None, ranks_per_host: int, as_json: bool
) -> None:
    """Find the best ring over the hosts of a job, and say what it costs.

    Costs are compared in this order: congestion (how much longer the busiest cable is busy than one block takes on the
    fastest cable), dilation (links on the longest edge of the ring), hops (links on all edges).
    """
    from ringmpi.cli.topology_view import placement_as_dict, placement_lines

    placement = _placed(files, file_format, hosts, ranks_per_host)[2]
    with shown():
        if as_json:
            click.echo(json.dumps(placement_as_dict(placement), allow_nan=False))
        for line in () if as_json else placement_lines(placement):
            click.echo(line)


@topology_command.command("export", short_help="Write the ring for a launcher.")
@files
@file_format
@job_hosts
@ranks_per_host
@click.option("--to", "launcher", type=click.Choice(EXPORTS), required=True, help="What reads it.")
@click.option("--cores", type=click.IntRange(min=1), help="With openmpi-rankfile: cores of each rank; default: 1.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Default: stdout.")
def export_command(**options: Any) -> None:
    """Write the ring for a launcher, so that rank 0, 1, 2, ... follow one another in it.

    \b
    openmpi-rankfile  mpirun --map-by rankfile:file=FILE    (--rankfile FILE before Open MPI 5)
    slurm-hostfile    SLURM_HOSTFILE=FILE srun --distribution=arbitrary
    mpich-rank-order  MPICH_RANK_REORDER_METHOD=3, FILE is MPICH_RANK_ORDER (Cray MPICH)
    hostfile          mpiexec -f FILE                       (MPICH, Intel MPI)
    """  # noqa: D301 - click wants the character \b itself
    from ringmpi.cli.topology_view import write_text
    from ringmpi.errors import ConfigError
    from ringmpi.topology import export

    names = ("files", "file_format", "hosts", "ranks_per_host")
    _, hosts, placement = _placed(*(options[name] for name in names))
    launcher, cores = options["launcher"], options["cores"]
    if cores and launcher != "openmpi-rankfile":
        raise ConfigError(
            f"--cores has no effect in a {launcher}: only an Open MPI rankfile names cores. Leave it out."
        )
    if launcher == "openmpi-rankfile":
        text = export.openmpi_rankfile(hosts, placement.order, cores or 1)
    elif launcher == "mpich-rank-order":
        text = export.mpich_rank_order(placement.order)
    else:
        text = (export.slurm_hostfile if launcher == "slurm-hostfile" else export.hostfile)(hosts, placement.order)
    write_text(text, options["output"])


def _placed(
    files: tuple[Path, ...], file_format: str | None, hosts: str | None, ranks_per_host: int
) -> tuple[Graph, list[str], Placement]:
    """The machine, the host of each rank in launch order, and the best ring."""
    from ringmpi.topology.building import some
    from ringmpi.topology.placement import place
    from ringmpi.topology.reading import read

    graph = read(files, file_format)
    names = hosts_of(graph, hosts, ranks_per_host)
    placement = place(graph, names)
    if placement.unplaced:
        click.echo(
            f"ringmpi: warning: not in the files, or without a link there: {some(placement.unplaced)}. Do the files "
            f"describe this machine?",
            err=True,
        )
    return graph, names, placement


def hosts_of(graph: Graph, hosts: str | None, ranks_per_host: int) -> list[str]:
    """The host of each rank, in launch order."""
    from ringmpi.errors import ConfigError
    from ringmpi.topology.hostlist import expand

    names = list(graph.hosts) if hosts is None else expand(hosts, "--hosts")
    if not names:
        raise ConfigError("no hosts: the files name none. Name those of the job with --hosts.")
    return [name for name in names for _ in range(ranks_per_host)]
