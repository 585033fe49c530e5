"""Slurm's topology.conf, and what `scontrol show topology` prints: lines of KEY=VALUE.

Source: topology.conf(5) of Slurm 26.05; the output by `topology_p_topology_print` in `src/plugins/topology`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ringmpi.errors import TopologyError
from ringmpi.topology.building import Builder, Source
from ringmpi.topology.graph import Graph
from ringmpi.topology.hostlist import expand
from ringmpi.topology.readers import slurm_layouts
from ringmpi.topology.readers.slurm_layouts import Named

LONGEST_LIST = 1 << 20  # characters of a line: names that share no brackets
_PAIR = re.compile(r'(?<!\w)([A-Za-z]\w{0,40})\s*=\s*("[^"]*"|\S+)')
_HEADS = ("switchname", "blockname", "blocksizes", "ringname", "torusname", "aggregatedblock")
_RECOGNISED = re.compile(rf"\s*(?:{'|'.join(_HEADS)})\s*=", re.IGNORECASE)
_KEYS = {
    *_HEADS,
    *("nodes", "switches", "linkspeed", "level", "blockindex", "blocksize", "ringsize", "dims"),
    *("placementdims", "anchors"),
}


def recognise(source: Source) -> bool:
    """Whether some line begins with a key of Slurm's."""
    return any(map(_RECOGNISED.match, source.sample))


def read(source: Source) -> Graph:
    """The tree, the blocks or the rings that the lines describe."""
    lines = list(_records(source))
    kinds = {head for _, record in lines for head in _HEADS if head in record}
    layouts = {"switchname": "tree", "blockname": "block", "ringname": "ring", "torusname": "torus"}
    found = [layout for head, layout in layouts.items() if head in kinds]
    if len(found) != 1:
        raise TopologyError(
            f"{source.name}: lines of {' and '.join(found) or 'no layout'}; one file describes one layout: a tree "
            f"(SwitchName=), blocks (BlockName=) or rings (RingName=)"
        )
    if found == ["torus"]:
        return _torus_without_places(lines)
    head = next(head for head, layout in layouts.items() if layout == found[0])
    named = [_named(where, record, head) for where, record in lines if head in record]
    if found == ["block"]:
        return slurm_layouts.block(named, _block_sizes(lines))
    return slurm_layouts.tree(named) if found == ["tree"] else slurm_layouts.ring(named)


def _records(source: Source) -> Iterator[tuple[str, dict[str, str]]]:
    """Every line as its keys, in lower case, and values. A backslash at the end continues a line."""
    waiting, start = "", ""
    for where, line in source.uncommented(LONGEST_LIST):
        start = start or where
        waiting += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield start, _record(start, waiting)
            waiting, start = "", ""
    if waiting:
        yield start, _record(start, waiting)


def _record(where: str, line: str) -> dict[str, str]:
    record: dict[str, str] = {}
    for pair in _PAIR.finditer(line):
        key = pair[1].lower()
        if key not in _KEYS or key in record:
            what = "appears twice" if key in record else f"is not one of Slurm's ({', '.join(sorted(_KEYS))})"
            raise TopologyError(f"{where}: key {pair[1]!r} {what}; correct the line")
        record[key] = pair[2].strip('"')
    rest = _PAIR.sub("", line).strip()
    if rest:
        raise TopologyError(
            f"{where}: {rest[:40]!r} belongs to no KEY=VALUE pair; a value has no blanks (n[1-4],n7). "
            f"Was the line cut? Unset SLURM_TOPO_LEN before scontrol"
        )
    return record


def _named(where: str, record: dict[str, str], head: str) -> Named:
    """One line. scontrol lists at an upper switch all nodes below it too: there only its switches count."""
    switches = expand(record.get("switches", ""), where)
    nodes = [] if switches and record.get("level", "0") != "0" else expand(record.get("nodes", ""), where)
    if not (nodes or switches):
        raise TopologyError(f"{where}: {record[head]!r} holds nothing; expected Nodes= or, for a switch, Switches=")
    return Named(where, record[head], nodes, switches)


def _block_sizes(lines: list[tuple[str, dict[str, str]]]) -> list[int]:
    """BlockSizes=30,120; scontrol tells instead which blocks are put together, so there sizes are in blocks."""
    for where, record in lines:
        if "blocksizes" in record:
            sizes = record["blocksizes"].split(",")
            if not all(size.isdecimal() and int(size[:9]) > 0 for size in sizes):
                raise TopologyError(f"{where}: BlockSizes={record['blocksizes'][:40]}; expected whole numbers above 0")
            return [int(size[:9]) for size in sizes]
    together = {len(expand(record["aggregatedblock"], where)) for where, record in lines if "aggregatedblock" in record}
    return [1, *sorted(count for count in together if count > 1 and count.bit_count() == 1)]


def _torus_without_places(lines: list[tuple[str, dict[str, str]]]) -> Graph:
    """What scontrol prints of a torus: its nodes, but in an order that is not that of their places."""
    builder = Builder()
    for where, record in lines:
        if "nodes" in record:
            for node in expand(record["nodes"], where):
                builder.host(node, where)
            builder.remark(
                f"{where}: scontrol does not show the places on torus {record.get('torusname', '')}; "
                f"give topology.yaml, or the SLURM_TOPOLOGY_ADDR of the tasks"
            )
    return builder.graph("none")
