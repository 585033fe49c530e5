"""The JSON of netloc (`*-nodes.ndat`): an InfiniBand subnet as hwloc's network extension stores it.

Source: `tests/data/netloc` of open-mpi/netloc. Every cable is there twice, once from either end.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ringmpi.errors import TopologyError
from ringmpi.topology.building import Source
from ringmpi.topology.graph import Graph
from ringmpi.topology.infiniband import Fabric, Port, gbits, layered

_SWITCH = 1  # node_type; 2 is a host


def recognise(source: Source) -> bool:
    """Whether this is JSON with netloc's tables."""
    return source.text.lstrip().startswith("{") and bool(re.search('"(?:node|edge|network)_info"', source.text))


def read(source: Source) -> Graph:
    """Hosts, switches and cables; a tree where the switches stand in layers."""
    try:
        document = json.loads(source.text)
        nodes: dict[str, Any] = document["node_info"]
        fabric = Fabric()
        for guid in nodes:
            _port(fabric, nodes, guid, 0, source.name)
        for edge in document["edge_info"].values():
            ends = [
                _port(fabric, nodes, str(edge[f"{end}_node_id"]), int(edge[f"{end}_port_id"]), source.name)
                for end in ("src", "dest")
            ]
            fabric.cable(source.name, ends[0], ends[1], gbits(f"{edge['width']}{edge['speed']}"))
    except json.JSONDecodeError as error:
        raise TopologyError(f"{source.at(error.lineno)}: not valid JSON: {error.msg}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TopologyError(f"{source.name}: not what netloc writes, at {error}; give its file unchanged") from None
    return layered(fabric.graph())


def _port(fabric: Fabric, nodes: dict[str, Any], guid: str, number: int, where: str) -> Port:
    node = nodes[guid]
    is_switch, description = node["node_type"] == _SWITCH, str(node["desc"]).strip("'")
    return fabric.port(where, guid.replace(":", ""), number, is_switch=is_switch, description=description)
