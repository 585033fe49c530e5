"""The topology graph of NVIDIA NetQ, as JSON: an Ethernet fabric as its switches see it by LLDP.

Source: `tests/output/netq` of NVIDIA/topograph. A link is a bundle of cables, each with its two interfaces.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ringmpi.errors import TopologyError
from ringmpi.topology.building import Builder, Source
from ringmpi.topology.graph import Graph
from ringmpi.topology.infiniband import layered


def recognise(source: Source) -> bool:
    """Whether this is JSON with bundles of links."""
    return source.text.lstrip().startswith(("[", "{")) and '"compounded_' in source.text


def read(source: Source) -> Graph:
    """Hosts, switches and the number of cables between them; a tree where the switches stand in layers."""
    builder = Builder()
    try:
        document = json.loads(source.text)
        for part in document if isinstance(document, list) else [document]:
            _add(part, builder, source.name)
    except json.JSONDecodeError as error:
        raise TopologyError(f"{source.at(error.lineno)}: not valid JSON: {error.msg}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TopologyError(f"{source.name}: not what NetQ writes, at {error}; give its answer unchanged") from None
    return layered(builder.graph("fabric"))


def _add(part: dict[str, Any], builder: Builder, where: str) -> None:
    nodes = [node for tier in part["nodes"] for node in tier["compounded_nodes"]]
    shared = Counter(str(node["name"]) for node in nodes)
    vertex = {}
    for node in nodes:
        name = str(node["name"]) if shared[str(node["name"])] == 1 else str(node["id"])
        add = builder.switch if node["device_type"] == "switch" else builder.host
        vertex[str(node["id"])] = add(name, where)
    for link in part["links"]:
        a, b = vertex[str(link["src"])], vertex[str(link["target"])]
        for rail in _rails(link, {str(link["src"]): a, str(link["target"]): b}, builder):
            builder.link(a, b, rail=rail)


def _rails(link: dict[str, Any], ends: dict[str, str], builder: Builder) -> Iterator[str]:
    """For each cable, the interface at its host; empty between switches."""
    for cable in link["compounded_links"]:
        at_host = [str(end["interface"]) for end in cable["interfaces"] if ends.get(str(end["node"])) in builder.hosts]
        yield at_host[0] if at_host else ""
