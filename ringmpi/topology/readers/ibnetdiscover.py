"""What `ibnetdiscover` prints: records of devices and their ports, or one line a port (-p), or devices alone (-l).

Source: `infiniband-diags/ibnetdiscover.c` and `man/common/sec_topology-file.rst` of rdma-core.
"""

from __future__ import annotations

import re

from ringmpi.errors import TopologyError
from ringmpi.topology.building import Source
from ringmpi.topology.graph import Graph
from ringmpi.topology.infiniband import Fabric, gbits, guid_of, layered

_HEAD = re.compile(r'(Switch|Ca|Rt)\s+(\d{1,4})\s+"([SHR])-([0-9a-fA-F]{1,16})"\s*(?:#\s*"(.*?)"(?:\s.*)?)?')
_PORT = re.compile(
    r"\[(\d{1,4})\]\s*(?:\[ext \d+\]\s*)?(?:\([0-9a-fA-F]+\)\s*)?"
    r'"([SHR])-([0-9a-fA-F]{1,16})"\s*\[(\d{1,4})\]\s*(?:\[ext \d+\]\s*)?(?:\([0-9a-fA-F]+\)\s*)?(?:#(.*))?'
)
_KEY = re.compile(r"(?:vendid|devid|sysimgguid|switchguid|caguid|rtguid)\s*=.*")
_GROUPING = re.compile(r"(?:Non-Chassis Nodes|Chassis\b.*|ChassisGUID\b.*)", re.IGNORECASE)
_LISTED = re.compile(
    r'(Switch|Ca|Rt)\s*:\s*0x([0-9a-fA-F]{1,16}) ports \d+(?: devid \w+ vendid \w+)?\s*"(.*?)".*'
)  # -l, ibhosts
_END = r"(CA|SW|RT)\s+(\d+)\s+(\d{1,4}) 0x([0-9a-fA-F]{1,16})"
_ONE_LINE = re.compile(rf"{_END}\s+(\S+ \S+)\s+-\s+{_END}\s+\(\s*'(.*)' - '(.*)'\s*\)")
_ONE_LINE_DOWN = re.compile(rf"{_END}\s.*")
_RECOGNISED = re.compile(rf"\s*(?:{_HEAD.pattern}|{_LISTED.pattern}|{_END}|switchguid=|caguid=)")


def recognise(source: Source) -> bool:
    """Whether some line is a device or a port of one of the three styles."""
    return any(map(_RECOGNISED.match, source.sample))


def read(source: Source) -> Graph:
    """Hosts, switches and cables; a tree where the switches stand in layers."""
    fabric = Fabric()
    device: tuple[str, bool] | None = None  # GUID and whether it is a switch
    for where, raw in source.numbered():
        line = raw.strip()
        if line.startswith("["):
            _cable(fabric, where, line, device)
        elif not line or line.startswith("#") or _KEY.fullmatch(line) or _GROUPING.fullmatch(line):
            continue
        elif head := _HEAD.fullmatch(line):
            device = (guid_of(head[4]), head[3] != "H")
            fabric.port(where, device[0], is_switch=device[1], description=head[5] or "")
        elif listed := _LISTED.fullmatch(line):
            fabric.port(where, guid_of(listed[2]), is_switch=listed[1] != "Ca", description=listed[3])
        elif pair := _ONE_LINE.fullmatch(line):
            words = pair.groups()
            ends = [
                fabric.port(where, guid_of(guid), int(number), is_switch=kind != "CA", description=name)
                for (kind, _, number, guid), name in ((words[:4], words[9]), (words[5:9], words[10]))
            ]
            fabric.cable(where, ends[0], ends[1], gbits(words[4].replace(" ", "")))
        elif not _ONE_LINE_DOWN.fullmatch(line):
            raise TopologyError(f"{where}: {line[:60]!r} is not a line of ibnetdiscover; give its output unchanged")
    return layered(fabric.graph())


def _cable(fabric: Fabric, where: str, line: str, device: tuple[str, bool] | None) -> None:
    """A port line of the record style. What stands behind # describes the peer, and ends with width and speed."""
    port = _PORT.fullmatch(line)
    if port is None or device is None:
        found = "comes before every device" if port else "is not a port line of ibnetdiscover"
        raise TopologyError(f"{where}: {line[:60]!r} {found}; give its output unchanged")
    number, kind, guid, peer_number, comment = port.groups(default="")
    before, _, speed = comment.rpartition('"')
    name = before.partition('"')[2]
    peer = fabric.port(where, guid_of(guid), int(peer_number), is_switch=kind != "H", description=name)
    fabric.cable(where, (device[0], int(number)), peer, gbits(speed))
