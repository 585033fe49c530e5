"""Several descriptions of one machine put together: its network, names for GUIDs, what is inside hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ringmpi.errors import TopologyError
from ringmpi.topology.building import some
from ringmpi.topology.graph import EVERY_HOST, Graph, Grid, Link, bundled
from ringmpi.topology.infiniband import host_and_rail
from ringmpi.topology.node import Node
from ringmpi.topology.torus_layout import laid_out


def joined(graphs: Sequence[tuple[str, Graph]]) -> Graph:
    """One graph of those that files gave, each with the name of its file.

    Networks may stand side by side (two fabrics), not over one another. Maps of names, seeds of a torus, and files of
    what is inside a host add to them.
    """
    network = Graph("none")
    for name, graph in graphs:
        if graph.hosts or graph.switches:
            network = _beside(network, graph, name)
        else:
            network = replace(network, remarks=(*network.remarks, *graph.remarks))
    for name, graph in graphs:
        if graph.aliases:
            network = _named(network, graph.aliases, name)
    for name, graph in graphs:
        if graph.grids and not graph.hosts and not graph.switches:
            network = _on_torus(network, graph.grids[0], name)
    return _equipped(network, [(name, graph.devices) for name, graph in graphs if graph.devices])


def _beside(one: Graph, other: Graph, name: str) -> Graph:
    """Both networks. They must have no host or switch in common."""
    if shared := one.neighbours.keys() & other.neighbours.keys():
        raise TopologyError(
            f"{name}: {some(sorted(shared))}: described by an earlier file too; give one file for each network"
        )
    if not one.neighbours:
        return replace(other, remarks=(*one.remarks, *other.remarks))
    return Graph(
        one.kind if one.kind == other.kind else "fabric",
        hosts=one.hosts + other.hosts,
        switches=one.switches + other.switches,
        links=one.links + other.links,
        parents={**one.parents, **other.parents} if one.kind == other.kind else {},
        grids=one.grids + other.grids,
        labels={**one.labels, **other.labels},
        unit=one.unit if one.unit == other.unit else f"{one.unit} or {other.unit}",
        remarks=one.remarks + other.remarks,
    )


def _named(graph: Graph, aliases: Mapping[str, str], name: str) -> Graph:
    """Hosts and switches that are called by GUID get the names that a map gives. Adapters of a host become one host."""
    described = {host: host_and_rail(aliases[host[2:]]) for host in graph.hosts if _is_guid(host, "H-", aliases)}
    new = {old: host for old, (host, _) in described.items() if host}
    if clash := set(new.values()) & set(graph.switches):
        raise TopologyError(f"{name}: {some(sorted(clash))}: a host by this map, a switch by another file; correct it")
    labels = {s: aliases[s[2:]] for s in graph.switches if _is_guid(s, "S-", aliases)}
    unknown = sum(host.startswith("H-") for host in graph.hosts)
    remark = f"{name}: names {len(new)} of {unknown} adapters without a host, and {len(labels)} switches"
    return replace(
        graph,
        hosts=tuple(dict.fromkeys(new.get(host, host) for host in graph.hosts)),
        links=bundled(_renamed(link, new, described) for link in graph.links),
        parents=_joined_parents(graph.parents, new),
        labels={**graph.labels, **labels},
        remarks=(*graph.remarks, remark),
    )


def _is_guid(vertex: str, prefix: str, aliases: Mapping[str, str]) -> bool:
    return vertex.startswith(prefix) and vertex[len(prefix) :] in aliases


def _renamed(link: Link, new: Mapping[str, str], described: Mapping[str, tuple[str, str]]) -> Link:
    """A link with the new names of its ends, and the adapter that the map tells."""
    rails = [described[end][1] for end in link.ends if end in new and described[end][1]] or link.rails
    a, b = (new.get(end, end) for end in link.ends)
    return replace(link, ends=(a, b), rails=tuple(rails))


def _joined_parents(parents: Mapping[str, tuple[str, ...]], new: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for child, above in parents.items():
        name = new.get(child, child)
        found[name] = tuple(dict.fromkeys((*found.get(name, ()), *above)))
    return found


def _on_torus(graph: Graph, seed: Grid, name: str) -> Graph:
    """Switches get the places that follow from the seeds of torus-2QoS.conf."""
    places = laid_out(graph, seed)
    if places is None:
        size = "x".join(map(str, seed.shape))
        remark = (
            f"{name}: the {len(graph.switches)} switches with their cables do not form a whole {size} from these seeds"
        )
        return replace(graph, remarks=(*graph.remarks, remark))
    return replace(graph, kind="torus", parents={}, grids=(*graph.grids, replace(seed, coordinates=places)))


def _equipped(graph: Graph, told: Iterable[tuple[str, Mapping[str, Node]]]) -> Graph:
    """Hosts get their devices. A file that names no host holds for all without one of their own."""
    devices: dict[str, Node] = {}
    remarks = list(graph.remarks)
    for name, nodes in told:
        for host, node in nodes.items():
            known = host if host == EVERY_HOST or not graph.hosts else graph.host(host)
            if known is None:
                remarks.append(f"{name}: host {host!r} is not in any given network")
            elif known in devices:
                raise TopologyError(f"{name}: the devices of {'every host' if host == '*' else host} are given twice")
            else:
                devices[known] = node
    return replace(graph, devices=devices, remarks=tuple(remarks))
