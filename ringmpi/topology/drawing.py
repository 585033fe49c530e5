"""A picture of a machine, the ring over the hosts of a job, and the blocks that pass over each link."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ringmpi.errors import ConfigError
from ringmpi.plotting import new_figure, save_figure
from ringmpi.topology.cost import ring_loads
from ringmpi.topology.graph import Graph
from ringmpi.topology.natural_order import natural_order
from ringmpi.topology.placement import place
from ringmpi.topology.routing import routes_between

Point = tuple[float, float]
MOST_NAMES = 64  # hosts that are named in the picture


def draw_ring(graph: Graph, hosts: Sequence[str], path: Path) -> None:
    """Write a picture of what joins `hosts`, as SVG, PNG or PDF by the suffix of `path`.

    Hosts stand at the bottom in ring order, switches above them by how far they are from hosts; a grid of two
    dimensions is drawn as a grid. The ring is red; a link is the thicker and darker, the more blocks pass over it in a
    ring step.

    Raises
    ------
    ConfigError
        If matplotlib is not installed or does not know the ending, or no host has a place on the machine.
    StorageError
        If the file cannot be written.
    """
    figure = new_figure(12, 7)
    placement = place(graph, hosts)
    ring = [vertex for host in placement.hosts if (vertex := graph.host(host)) and host not in placement.unplaced]
    if not ring or graph.kind == "order":
        raise ConfigError("nothing to draw: the files give no link of any of these hosts.")
    axes = figure.subplots()
    loads = _loads(graph, ring)
    points = _points(graph, ring, loads)
    _draw_links(axes, graph, points, loads)
    _draw_vertices(axes, graph, points, ring)
    cost = placement.cost
    axes.set_title(
        f"{len(ring):,} hosts, {graph.kind}: "
        f"congestion {cost.congestion:g}, dilation {cost.dilation}, hops {cost.hops:,}"
    )
    axes.set_axis_off()
    save_figure(figure, path)


def _loads(graph: Graph, ring: Sequence[str]) -> dict[tuple[str, str], int]:
    """Links between vertices that the ring uses, sorted by name, to the blocks in the busier direction."""
    routes = routes_between(graph, ring)
    number = {host: index for index, host in enumerate(routes.hosts)}
    loads: dict[tuple[str, str], int] = defaultdict(int)
    for (a, b), load in ring_loads(routes, [number[host] for host in ring]).items():
        ends = (min(a, b), max(a, b))
        loads[ends] = max(loads[ends], load)
    return loads


def _points(graph: Graph, ring: Sequence[str], used: Iterable[tuple[str, str]]) -> dict[str, Point]:
    """Where each vertex stands."""
    flat = [grid for grid in graph.grids if len(grid.shape) == 2]
    if flat and set(ring) <= flat[0].coordinates.keys():
        return {vertex: (float(x), float(y)) for vertex, (x, y) in flat[0].coordinates.items()}
    points = {host: (float(column), 0.0) for column, host in enumerate(ring)}
    around: dict[str, set[str]] = defaultdict(set)
    for a, b in used:
        around[a].add(b)
        around[b].add(a)
    level, height = set(ring), 0
    while level := {vertex for known in level for vertex in around[known] if vertex not in points}:
        height += 1
        middles = {vertex: _middle(points[v][0] for v in around[vertex] if v in points) for vertex in level}
        ordered = sorted(natural_order(level), key=middles.__getitem__)
        for column, vertex in enumerate(ordered):
            points[vertex] = ((column + 0.5) * len(ring) / len(ordered) - 0.5, float(height))
    return points


def _middle(values: Iterable[float]) -> float:
    several = list(values)
    return sum(several) / len(several)


def _draw_links(axes: Any, graph: Graph, points: dict[str, Point], loads: dict[tuple[str, str], int]) -> None:
    most = max(4, *loads.values())
    for (a, b), load in sorted(loads.items()):
        if b in graph.neighbours.get(a, {}):
            (x0, y0), (x1, y1) = points[a], points[b]
            share = load / most
            axes.plot([x0, x1], [y0, y1], color=str(0.75 * (1 - share)), linewidth=0.8 + 2 * share, zorder=1)
            if load > 1:
                axes.text((x0 + x1) / 2, (y0 + y1) / 2, str(load), fontsize=7)


def _draw_vertices(axes: Any, graph: Graph, points: dict[str, Point], ring: Sequence[str]) -> None:
    """Switches with their labels, hosts with their names, and the ring as bows from host to host."""
    of_ring = set(ring)
    for vertex, point in points.items():
        host = vertex in of_ring
        axes.plot(*point, marker="o" if host else "s", color="tab:red" if host else "tab:blue", zorder=3)
        if len(ring) <= MOST_NAMES:
            beside = {
                "xytext": (0, -6 if host else 6),
                "va": "top" if host else "bottom",
                "rotation": 90 if host else 0,
            }
            name = graph.labels.get(vertex, vertex)
            axes.annotate(name, point, textcoords="offset points", fontsize=6, ha="center", **beside)
    for a, b in zip(ring, [*ring[1:], ring[0]], strict=True):
        bend = 0.25 if points[a] < points[b] else -0.06  # below the hosts, whichever way it goes
        bow = {"arrowstyle": "-|>", "color": "tab:red", "connectionstyle": f"arc3,rad={bend}", "alpha": 0.7}
        axes.annotate("", points[b], points[a], arrowprops=bow)
