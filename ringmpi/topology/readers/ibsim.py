"""The `net` file of ibsim, the simulator of InfiniBand fabrics: devices, their ports, and where the cables go.

Source: `ibsim/sim_net.c` and `net-examples` of ibsim. It also reads files of ibnetdiscover, which look much the same.
"""

from __future__ import annotations

import re

from ringmpi.errors import TopologyError
from ringmpi.topology.building import Source
from ringmpi.topology.graph import Graph
from ringmpi.topology.infiniband import LANE_GBITS, Fabric, layered

_HEAD = re.compile(r'(Switch|Hca|Ca|Rt)\s+(\d{1,4})\s+"([^"]+)"(.*)')
_PORT = re.compile(r'\[(\d{1,4})\]\s*"([^"]+)"\s*\[(\d{1,4})\](.*)')
_WIDTH = re.compile(r"\bw(?:idth)?\s*=\s*(\d{1,2})")
_SPEED = re.compile(r"\bs(?:peed)?\s*=\s*(\w+)")
_SPEEDS = {"1": "SDR", "2": "DDR", "4": "QDR"}
_SETTING = re.compile(
    r"(?:devid|vendid|sysimgguid|switchguid|hcaguids?|caguid|rtguid|width|speed|module|include|do)\b.*"
)
_RECOGNISED = re.compile(r'(?:Switch|Hca)\s+\d+\s+"(?!S-[0-9a-fA-F]{8,16}")')


def recognise(source: Source) -> bool:
    """Whether some line begins a device whose name is no GUID."""
    return any(map(_RECOGNISED.match, source.sample))


def read(source: Source) -> Graph:
    """Hosts, switches and cables; a tree where the switches stand in layers. Names are the GUIDs here."""
    kinds = {head[3]: head[1] == "Switch" for _, line in source.uncommented() if (head := _HEAD.fullmatch(line))}
    fabric = Fabric()
    device = ""
    for where, line in source.uncommented():
        if head := _HEAD.fullmatch(line):
            device = head[3]
            fabric.port(where, device, is_switch=kinds[device], description=device)
        elif (port := _PORT.fullmatch(line)) and device:
            if port[2] not in kinds:
                raise TopologyError(f"{where}: {port[2]!r} is not a device in this file; add its Switch or Hca line")
            peer = fabric.port(where, port[2], int(port[3]), is_switch=kinds[port[2]], description=port[2])
            fabric.cable(where, (device, int(port[1])), peer, _rate(port[4]))
        elif not _SETTING.match(line) and not re.fullmatch(r"\[\d+\].*", line):
            raise TopologyError(f"{where}: {line[:60]!r} is not a device, port or setting of ibsim; correct the line")
    return layered(fabric.graph())


def _rate(settings: str) -> float:
    """Gbit/s by w= and s= of a port; without them 4xSDR, what ibsim links come up with."""
    width, speed = _WIDTH.search(settings), _SPEED.search(settings)
    lane = LANE_GBITS.get(_SPEEDS.get(speed[1], speed[1].upper()), 2.5) if speed else 2.5
    return (int(width[1]) if width else 4) * lane
