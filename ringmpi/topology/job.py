"""The hosts of a job, found on a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringmpi.topology.graph import Graph


@dataclass(frozen=True)
class Job:
    """Which rank is where.

    Attributes
    ----------
    names : tuple of str
        Host of each rank, in launch order, as the job calls it.
    vertices : tuple of (str or None)
        The same by the names of the machine; None where it does not know the host, or no link and no place of it.
    """

    names: tuple[str, ...]
    vertices: tuple[str | None, ...]

    @property
    def launch(self) -> list[str]:
        """The vertex of each rank that has one."""
        return [vertex for vertex in self.vertices if vertex is not None]

    @property
    def unplaced(self) -> tuple[str, ...]:
        """Hosts without a vertex, each once, in launch order."""
        missing = (name for name, vertex in zip(self.names, self.vertices, strict=True) if vertex is None)
        return tuple(dict.fromkeys(missing))

    def ranks_of(self, ring: Sequence[str]) -> list[list[int]]:
        """The launch ranks of each host in turn: those of the vertices `ring`, then those of `unplaced`."""
        ranks: dict[str, list[int]] = {}
        for rank, (name, vertex) in enumerate(zip(self.names, self.vertices, strict=True)):
            ranks.setdefault(name if vertex is None else f"vertex {vertex}", []).append(rank)
        return [ranks[host] for host in (*(f"vertex {vertex}" for vertex in ring), *self.unplaced)]


def find_job(graph: Graph, hosts: Sequence[str]) -> Job:
    """The job whose ranks run on `hosts`, in launch order, on the machine `graph`."""
    in_grid = {vertex for grid in graph.grids for vertex in grid.coordinates}

    def vertex_of(name: str) -> str | None:
        vertex = graph.host(name)
        known = vertex is not None and (vertex in in_grid or graph.neighbours[vertex] or graph.kind == "order")
        return vertex if known else None

    found = {name: vertex_of(name) for name in dict.fromkeys(hosts)}
    return Job(tuple(hosts), tuple(found[name] for name in hosts))
