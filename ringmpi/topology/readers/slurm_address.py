"""SLURM_TOPOLOGY_ADDR and SLURM_TOPOLOGY_ADDR_PATTERN, which Slurm sets for each task: one line a task holds both.

Source: `topology_p_get_node_addr` in `src/plugins/topology` of Slurm 26.05. The pattern names the fields:
switch.switch.node, block.node, ring:position.node, torus:x:y:z.node, node. Manual pages speak of trees alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ringmpi.errors import TopologyError
from ringmpi.topology.building import Builder, Source
from ringmpi.topology.graph import Graph, Grid, Kind
from ringmpi.topology.hostlist import expand
from ringmpi.topology.readers import slurm_layouts
from ringmpi.topology.readers.slurm_layouts import Named

_LINE = re.compile(r"(?:\d+:\s*)?(\S+)\s+((?:(?:switch|block|ring:position|torus:x:y:z)\.)*node)")
_RECOGNISED = re.compile(rf"{_LINE.pattern}\s*$")


@dataclass(frozen=True, slots=True)
class Address:
    """What one task knows of its node: where that was read, the names above it from the top, its own name."""

    where: str
    kind: str
    above: Sequence[str]
    node: str


def recognise(source: Source) -> bool:
    """Whether some line is an address and its pattern."""
    return any(map(_RECOGNISED.match, source.sample))


def read(source: Source) -> Graph:
    """The tree, blocks, ring or torus around the nodes of a job. `srun -l` may number the lines."""
    addresses = []
    for where, line in source.uncommented():
        found = _LINE.fullmatch(line)
        if found is None:
            raise TopologyError(
                f"{where}: {line[:60]!r}; expected an address and its pattern, as printed by "
                f"srun bash -c 'echo \"$SLURM_TOPOLOGY_ADDR $SLURM_TOPOLOGY_ADDR_PATTERN\"'"
            )
        addresses.append(parse(found[1], found[2], where))
    return graph_of(addresses)


def parse(address: str, pattern: str, where: str = "SLURM_TOPOLOGY_ADDR") -> Address:
    """One task's two variables. The node may have dots in its name, so fields are split from the left."""
    *above, node = address.split(".", pattern.count("."))
    if len(above) != pattern.count(".") or not node:
        raise TopologyError(f"{where}: {address[:60]!r} does not have the fields of its pattern {pattern!r}")
    return Address(where, pattern.partition(".")[0], above, node)


def graph_of(addresses: Iterable[Address]) -> Graph:
    """The graph around the nodes of a job, from the addresses of its tasks; several may share a node."""
    by_node = {address.node: address for address in addresses}
    kinds = {address.kind for address in by_node.values()}
    if len(kinds) > 1:
        first = next(iter(by_node.values())).where
        raise TopologyError(
            f"{first}: addresses of {' and '.join(sorted(kinds))} are mixed; give those of one job step"
        )
    kind = kinds.pop() if kinds else "node"
    if kind == "switch":
        return _tree(by_node.values())
    if kind == "block":
        blocks: dict[str, list[Address]] = {}
        for address in by_node.values():
            blocks.setdefault(address.above[0], []).append(address)
        return slurm_layouts.block([Named(a[0].where, name, [x.node for x in a]) for name, a in sorted(blocks.items())])
    if kind in {"ring:position", "torus:x:y:z"}:
        return _places(by_node.values(), "ring" if kind == "ring:position" else "torus")
    builder = Builder()
    for address in by_node.values():
        builder.host(address.node, address.where)
    if by_node:
        builder.remark(
            f"{next(iter(by_node.values())).where}: Slurm runs without a topology plugin: only names are known"
        )
    return builder.graph("none")


def _tree(addresses: Iterable[Address]) -> Graph:
    """A level without a switch for this node is empty; a field may name several switches that all hold it."""
    switches: dict[str, str] = {}
    nodes: dict[str, dict[str, None]] = {}
    children: dict[str, dict[str, None]] = {}
    for address in addresses:
        levels = [expand(field, address.where) for field in address.above if field]
        for names in levels:
            switches |= {name: address.where for name in names if name not in switches}
        for upper, lower in zip(levels, levels[1:], strict=False):
            for name in upper:
                children.setdefault(name, {}).update(dict.fromkeys(lower))
        for name in levels[-1] if levels else ():
            nodes.setdefault(name, {})[address.node] = None
        if not levels:
            raise TopologyError(f"{address.where}: no switch holds {address.node!r}; correct topology.conf")
    return slurm_layouts.tree(
        [
            Named(where, name, list(nodes.get(name, ())), list(children.get(name, ())))
            for name, where in switches.items()
        ]
    )


def _places(addresses: Iterable[Address], kind: Kind) -> Graph:
    """Places on rings or toruses. Their sizes are not told, so no dimension is known to wrap."""
    builder = Builder()
    places: dict[str, dict[str, tuple[int, ...]]] = {}
    first = ""
    for address in addresses:
        name, *numbers = address.above[0].split(":")
        if len(numbers) != (1 if kind == "ring" else 3) or not all(re.fullmatch(r"\d{1,6}", n) for n in numbers):
            raise TopologyError(f"{address.where}: {address.above[0][:60]!r} gives no place on a {kind}")
        places.setdefault(name, {})[builder.host(address.node, address.where)] = tuple(map(int, numbers))
        first = first or address.where
    for name, coordinates in places.items():
        shape = tuple(max(axis) + 1 for axis in zip(*coordinates.values(), strict=True))
        builder.grid(Grid(name, shape, (False,) * len(shape), coordinates))
    builder.remark(f"{first}: the size of the {kind} is not given here, so its wrap is unknown: give topology.yaml")
    return builder.graph(kind)
