"""What InfiniBand's tools tell in different ways: cables between ports, and whose port an adapter's is.

A host may have several adapters (HCAs); only the text that each bears says which. Rates are those of the signal:
IBTA Architecture Specification, volume 2, as `iblinkinfo` prints them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from ringmpi.topology.building import Builder, some
from ringmpi.topology.graph import Graph

LANE_GBITS = {
    "SDR": 2.5,
    "DDR": 5.0,
    "QDR": 10.0,
    "FDR10": 10.3125,
    "FDR": 14.0625,
    "EDR": 25.78125,
    "HDR": 53.125,
    "NDR": 106.25,
    "XDR": 212.5,
}
SLOWEST = 2.5
_WIDTH_AND_SPEED = re.compile(r"(\d{1,2}|\?\?)\s*[xX]\s*([A-Z]+\d*|\?+)")
# "host mlx5_0", "host HCA-1": what rdma-ndd and the drivers write, host name first.
_ADAPTER = re.compile(r"(?:HCA-\d+|(?:mlx|mthca|hfi|qib|ipath|bnxt|efa|irdma|cxgb|rxe|siw|hns|ocrdma|ib|roce)\w*)")
_SAYS_NO_HOST = {"localhost", "localhost.localdomain", "(none)", "unknown"}
_AGGREGATION = re.compile(r"Aggregation Node", re.IGNORECASE)  # SHARP: a part of a switch that looks like an adapter


Port = tuple[str, int]  # GUID of the switch or adapter (or another text that no second device bears), number


@dataclass(slots=True)
class _Device:
    """A switch or an adapter: where it was first told of, and what it says of itself."""

    where: str
    is_switch: bool
    description: str


def guid_of(text: str) -> str:
    """0x8f10400410015 as 16 digits."""
    return text.lower().removeprefix("0x").zfill(16)


@lru_cache(maxsize=256)
def gbits(width_and_speed: str) -> float | None:
    """4xNDR or "4X 106.25 Gbps" as Gbit/s; None where the tool did not know."""
    lanes = re.search(r"(\d{1,2})[xX]\s+(\d{1,4}(?:\.\d{1,6})?) Gbps", width_and_speed)
    if lanes:
        return int(lanes[1]) * float(lanes[2])
    found = _WIDTH_AND_SPEED.search(width_and_speed)
    if found is None or not found[1].isdecimal() or found[2] not in LANE_GBITS:
        return None
    return int(found[1]) * LANE_GBITS[found[2]]


def host_and_rail(description: str) -> tuple[str, str]:
    """The host and the adapter that a description names; no host ("") where it is only the name of a product."""
    words = description.strip("' \"").split()
    if not words or words[0].lower() in _SAYS_NO_HOST:
        return "", ""
    if len(words) == 1:
        return words[0], ""
    return (words[0], words[1]) if _ADAPTER.fullmatch(words[1]) else ("", "")


class Fabric:
    """Cables as they are found. Each is usually told twice, once from either end."""

    def __init__(self) -> None:
        self._devices: dict[str, _Device] = {}
        self._cables: dict[tuple[Port, Port], tuple[str, float | None]] = {}
        self._remarks: list[str] = []

    def port(self, where: str, guid: str, number: int = 0, *, is_switch: bool, description: str = "") -> Port:
        """A port; its device is added if it is new. The first description that is not empty holds."""
        known = self._devices.get(guid)
        if known is None:
            self._devices[guid] = _Device(where, is_switch, description)
        elif description and not known.description:
            known.description = description
        return guid, number

    def cable(self, where: str, one: Port, other: Port, rate: float | None) -> None:
        """Add a cable; where its two ends tell different rates, the lower one holds."""
        ends = (one, other) if one < other else (other, one)
        before = self._cables.get(ends)
        if before is not None and before[1] != rate:
            told = [known for known in (before[1], rate) if known is not None]
            if len(told) == 2:
                self._remarks.append(f"{where}: {rate:g} Gbit/s here, {before[1]:g} at {before[0]}: the lower holds")
            rate = min(told)
        self._cables[ends] = (where, rate)

    def graph(self) -> Graph:
        """Hosts for adapters, by their descriptions; switches by GUID, with a label."""
        builder = Builder()
        builder.remarks += self._remarks
        vertex, rails = self._vertices(builder)
        unknown = [where for where, rate in self._cables.values() if rate is None]
        for ((one, _), (other, _)), (_, rate) in self._cables.items():
            if one in vertex and other in vertex:
                rail = rails.get(one) or rails.get(other) or ""
                builder.link(vertex[one], vertex[other], capacity=SLOWEST if rate is None else rate, rail=rail)
        if unknown:
            builder.remark(f"{unknown[0]}: {len(unknown)} cables of unknown speed, taken for {SLOWEST} Gbit/s (1xSDR)")
        if not self._cables:
            where = next((device.where for device in self._devices.values()), "file")
            builder.remark(f"{where}: no cable is in this file, so there is no network to place on")
        return builder.graph("fabric" if self._cables else "none", unit="Gbit/s")

    def _vertices(self, builder: Builder) -> tuple[dict[str, str], dict[str, str]]:
        """GUID to vertex and GUID to rail. Aggregation nodes get neither."""
        vertex: dict[str, str] = {}
        rails: dict[str, str] = {}
        nameless = []
        for guid, device in self._devices.items():
            if device.is_switch:
                vertex[guid] = builder.switch(f"S-{guid}", device.where, device.description)
            elif not _AGGREGATION.search(device.description):
                host, rail = host_and_rail(device.description)
                vertex[guid] = builder.host(host or f"H-{guid}", device.where)
                rails[guid] = rail or guid
                if not host:
                    nameless.append(device.where)
        if nameless:
            builder.remark(
                f"{nameless[0]}: {len(nameless)} adapters name no host (further lines: "
                f"{some(where.rpartition(':')[2] for where in nameless[1:])}); give a map of GUIDs to hosts too"
            )
        return vertex, rails


def layered(graph: Graph) -> Graph:
    """The graph as a tree, if its switches stand in layers: every link then joins neighbouring layers.

    A layer is the distance from the hosts. Switches that bear few hosts beside many links to leaves (a management host
    on a spine) count as spines: their hosts say nothing of the network.
    """
    links = {switch: graph.neighbours[switch] for switch in graph.switches}
    hosts = Counter({switch: sum(n not in links for n in near) for switch, near in links.items()})
    layer = [s for s in links if hosts[s] and 4 * hosts[s] >= _typical(hosts, links, s)]
    level = dict.fromkeys(layer, 1)
    while layer:
        following = dict.fromkeys(n for s in layer for n in links[s] if n in links and n not in level)
        level |= dict.fromkeys(following, level[layer[0]] + 1)
        layer = list(following)
    parents: dict[str, tuple[str, ...]] = {}
    for switch, mine in level.items():  # switches that no host can reach have no layer, and play no part
        others = [(n, level[n]) for n in links[switch] if n in links]
        if any(abs(theirs - mine) != 1 for _, theirs in others):
            return graph
        if above := tuple(n for n, theirs in others if theirs > mine):
            parents[switch] = above
    parents |= {host: above for host in graph.hosts if (above := tuple(filter(level.get, graph.neighbours[host])))}
    return replace(graph, kind="tree", parents=parents) if level else graph


def _typical(hosts: Counter[str], links: Mapping[str, Mapping[str, object]], switch: str) -> float:
    """The mean number of hosts on the neighbours of a switch that bear some; 0 where none does."""
    near = [hosts[n] for n in links[switch] if n in links and hosts[n]]
    return sum(near) / len(near) if near else 0.0
