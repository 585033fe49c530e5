"""Files of opensm, InfiniBand's subnet manager: a map of names, the order of the fat-tree routing, the torus's seeds.

Source: opensm's `osm_ucast_ftree.c` (opensm-ftree-ca-order.dump), `man/torus-2QoS.conf.5`, and the node name map of
`infiniband-diags`.
"""

from __future__ import annotations

import re

from ringmpi.errors import TopologyError
from ringmpi.topology.building import Builder, Source, uncommented
from ringmpi.topology.graph import Graph, Grid
from ringmpi.topology.infiniband import guid_of, host_and_rail
from ringmpi.topology.torus_layout import Seed

_ORDER = re.compile(r"0x([0-9a-fA-F]{1,4})\s+(\S.*)")
_MAP = re.compile(r'0x([0-9a-fA-F]{5,16})\s+(?:"(.*)"|(\S+(?:\s+\S+)?))')
_TORUS = re.compile(r"(torus|mesh)\s+(\d{1,4})([tTmM]?)\s+(\d{1,4})([tTmM]?)\s+(\d{1,4})([tTmM]?)")
_LINK = re.compile(r"([xyz])([pm])_link\s+0x([0-9a-fA-F]{1,16})\s+0x([0-9a-fA-F]{1,16})")
_SETTING = re.compile(r"(?:[xyz]_dateline|next_seed|portgroup_max_ports|port_order|max_changes)\b.*")


def recognise_order(source: Source) -> bool:
    """Whether every line is a LID and what has it."""
    return _all(source, _ORDER)


def recognise_map(source: Source) -> bool:
    """Whether every line is a GUID and a name."""
    return _all(source, _MAP)


def _all(source: Source, pattern: re.Pattern[str]) -> bool:
    lines = uncommented(source.sample)
    return bool(lines) and all(map(pattern.fullmatch, lines))


def recognise_torus(source: Source) -> bool:
    """Whether a line gives a torus's sizes, as torus 4 4 2, or the two switches of a seed link."""
    return any(_TORUS.fullmatch(line) or _LINK.fullmatch(line) for line in uncommented(source.sample))


def read_order(source: Source) -> Graph:
    """Hosts in the order that opensm routes them: leaf by leaf, filled up with dummies."""
    builder = Builder()
    for where, line in source.uncommented():
        found = _ORDER.fullmatch(line)
        if found is None:
            raise TopologyError(f"{where}: {line[:60]!r}; expected a LID and a description, as 0x0012<tab>n01 HCA-1")
        if found[1].upper() == "FFFF" or found[2].strip("' \"").upper() == "DUMMY":
            continue
        host = host_and_rail(found[2])[0]
        if host:
            builder.host(host, where)
        else:
            builder.remark(f"{where}: {found[2]!r} names no host")
    return builder.graph("order")


def read_map(source: Source) -> Graph:
    """GUIDs and what people call them; it goes with a file of the fabric."""
    aliases = {}
    for where, line in source.uncommented():
        found = _MAP.fullmatch(line)
        if found is None:
            raise TopologyError(
                f'{where}: {line[:60]!r}; expected a GUID and a name, as 0x0008f10403960558 "n01 HCA-1"'
            )
        aliases[guid_of(found[1])] = found[2] or found[3] or ""
    return Graph("none", aliases=aliases)


def read_torus(source: Source) -> Graph:
    """Sizes of a torus of switches and the seed links that orient it; it goes with a file of the fabric."""
    shape: tuple[int, ...] = ()
    wrap: tuple[bool, ...] = ()
    seed = Seed()
    for where, line in source.uncommented():
        if size := _TORUS.fullmatch(line):
            shape = (int(size[2]), int(size[4]), int(size[6]))
            wrap = tuple((mark or size[1])[0].lower() == "t" for mark in (size[3], size[5], size[7]))
            if 0 in shape:
                raise TopologyError(f"{where}: a size is 0; each is at least 1")
        elif link := _LINK.fullmatch(line):
            seed.link("xyz".index(link[1]), link[2] == "p", guid_of(link[3]), guid_of(link[4]))
        elif not _SETTING.fullmatch(line):
            raise TopologyError(f"{where}: {line[:60]!r} is not a line of torus-2QoS.conf; correct it")
    if not shape:
        raise TopologyError(f"{source.name}: no line gives the sizes; expected torus X Y Z or mesh X Y Z")
    places = {f"S-{guid}": place for guid, place in seed.places(shape, source.name).items()}
    return Graph("none", grids=(Grid("torus-2QoS", shape, wrap, places),))
