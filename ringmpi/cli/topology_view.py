"""A machine and a placement as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ringmpi.cli.streams import shown
from ringmpi.errors import StorageError
from ringmpi.topology.cost import Cost
from ringmpi.topology.graph import EVERY_HOST, Graph
from ringmpi.topology.hostlist import fold
from ringmpi.topology.node import Node
from ringmpi.topology.placement import Placement

MOST_SWITCHES = 40  # in the table of a machine
MOST_REMARKS = 20


def graph_lines(graph: Graph) -> Iterator[str]:
    """What is known of a machine: counts, grids, a line for each switch with hosts, remarks."""
    parts = len(set(graph.components.values()))
    yield f"kind      {graph.kind}"
    yield f"hosts     {len(graph.hosts):,}, {len(graph.unlinked):,} of them without a link"
    yield f"switches  {len(graph.switches):,}"
    cables = sum(link.cables for link in graph.links)
    yield f"links     {len(graph.links):,}, of {cables:,} cables; capacity in {graph.unit}"
    yield f"parts     {parts:,}" + (", no path between them is known" if parts > 1 else "")
    for grid in graph.grids:
        shape = " x ".join(
            f"{size} {'wrapped' if wrap else 'open'}" for size, wrap in zip(grid.shape, grid.wrap, strict=True)
        )
        yield f"grid      {grid.name}: {shape}, {len(grid.coordinates):,} places taken"
    yield from _switch_lines(graph)
    for host, node in graph.devices.items():
        yield from (f"devices   {'every host' if host == EVERY_HOST else host}: {line}" for line in _device_lines(node))
    yield from (f"remark    {remark}" for remark in graph.remarks[:MOST_REMARKS])
    if len(graph.remarks) > MOST_REMARKS:
        yield f"remark    and {len(graph.remarks) - MOST_REMARKS:,} more"


def _switch_lines(graph: Graph) -> Iterator[str]:
    hosts, rows = set(graph.hosts), []
    for switch in graph.switches:
        around = graph.neighbours[switch]
        below = [vertex for vertex in around if vertex in hosts]
        if below:
            rows.append((graph.labels.get(switch, switch), len(around) - len(below), fold(below)))
    width = max((len(name) for name, _, _ in rows), default=0)
    for name, others, names in rows[:MOST_SWITCHES]:
        yield f"switch    {name:{width}}  to {others} {'switch' if others == 1 else 'switches'} and {names}"
    if len(rows) > MOST_SWITCHES:
        yield f"switch    and {len(rows) - MOST_SWITCHES:,} more"


def _device_lines(node: Node) -> Iterator[str]:
    """GPUs, each with the adapters nearest to it and the NVLinks that it has; then the adapters."""
    for gpu in node.of_kind("gpu"):
        links = sum(count for (one, _), count in node.nvlinks.items() if one == gpu)
        near = fold(node.nearest_nics(gpu)) or "unknown"
        nvlinks = f", {links:g} {node.nvlink_unit} of NVLink" if links else ""
        yield f"{gpu}, nearest adapters {near}{nvlinks}"
    if nics := node.of_kind("nic"):
        yield f"adapters {', '.join(nics)}"


def placement_lines(placement: Placement) -> Iterator[str]:
    """The ring, its cost beside that of launch order and the bound, and what could not be placed."""
    yield f"ring         {fold(placement.hosts)}"
    yield "             congestion  dilation   hops"
    yield _cost_line("this ring", placement.cost)
    yield _cost_line("launch order", placement.launch_cost)
    yield _cost_line("lower bound", placement.lower_bound)
    of_these = " over the hosts that are known" if placement.unplaced else ""
    if len(placement.unplaced) == len(placement.hosts):
        yield "No host is known, so no ring can be judged: this is launch order."
    elif placement.proved_optimal:
        yield f"No ring{of_these} is better: proved."
    else:
        yield f"Whether a better ring{of_these} exists is unknown."
    if placement.unplaced:
        yield f"unplaced     {fold(placement.unplaced)}"
        yield "They end the ring, in launch order."


def _cost_line(name: str, cost: Cost) -> str:
    return f"{name:12} {cost.congestion:10g} {cost.dilation:9,} {cost.hops:6,}"


def placement_as_dict(placement: Placement) -> dict[str, Any]:
    """The placement for machines."""
    return {
        "hosts": placement.hosts,
        "cost": asdict(placement.cost),
        "launch_cost": asdict(placement.launch_cost),
        "lower_bound": asdict(placement.lower_bound),
        "proved_optimal": placement.proved_optimal,
        "unplaced": placement.unplaced,
    }


def write_text(text: str, path: Path | None) -> None:
    """Write to a file, or to stdout if there is none.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    if path is None:
        with shown():
            click.echo(text, nl=False)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {(error.strerror or str(error)).lower()}. Name another file."
        ) from None
