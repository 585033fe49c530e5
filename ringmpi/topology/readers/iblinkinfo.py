"""What `iblinkinfo` prints: a paragraph a device and a line a port, or whole lines (-l).

Source: `infiniband-diags/iblinkinfo.c` of rdma-core. Peers are told by LID in paragraphs and by GUID in lines.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from ringmpi.errors import TopologyError
from ringmpi.topology.building import Source
from ringmpi.topology.graph import Graph
from ringmpi.topology.infiniband import Fabric, Port, gbits, layered

_HEAD = re.compile(r"(?:(Switch):\s+0x([0-9a-fA-F]{1,16})|(?:CA|RT|Router|\?\?):)\s*(.*?):?")
_GUID = r"0x([0-9a-fA-F]{1,16})\s+"
_PORT = r"(\d{1,5})\s+(\d{1,4})\[[ \d]*\]\s*"
_PEER = rf'(?:{_GUID})?(?:{_PORT}"(.*?)"|\[[ \d]*\]\s*""|"Port not).*'
_LINE = re.compile(rf'(?:{_GUID})?(?:"\s*(.*?)\s*"\s+)?{_PORT}==(\(.*\))==>\s*{_PEER}')
_RECOGNISED = re.compile(r"==\(.{1,120}\)==>")
_NO_LID = {"0", "65535"}


@dataclass(frozen=True, slots=True)
class _End:
    """One end of a cable: the key (GUID or LID) that tells its device from others."""

    key: str
    port: int
    name: str


def recognise(source: Source) -> bool:
    """Whether some line has the arrow that stands between two ports."""
    return any(map(_RECOGNISED.search, source.sample))


def read(source: Source) -> Graph:
    """Hosts, switches and cables; a tree where the switches stand in layers. Ports without a peer are left out."""
    cables: list[tuple[str, _End, _End, float | None]] = []
    switches: dict[str, str] = {}  # key to GUID
    lines: Counter[str] = Counter()
    guid = name = ""
    for where, raw in source.numbered():
        text = raw.strip()
        if not text or text.startswith("#"):
            continue
        if line := _LINE.fullmatch(text):
            whole = line[2] is not None
            own = _End(line[1] if whole and line[1] else line[3], int(line[4]), line[2] if whole else name)
            lines[own.key] += whole
            if guid and not whole:
                switches[own.key] = guid
            if line[7]:
                cables.append((where, own, _End(line[6] or line[7], int(line[8]), line[9]), gbits(line[5])))
        elif head := _HEAD.fullmatch(text):
            guid, name = head[2] or "", head[3]
        else:
            raise TopologyError(f"{where}: {text[:60]!r} is not a line of iblinkinfo; give its output unchanged")
    # Whole lines do not say what is a switch: an adapter's port has one line, a switch as many as it has ports.
    switches |= {key: key for key, count in lines.items() if count > 1}
    return _joined(cables, switches)


def _joined(cables: list[tuple[str, _End, _End, float | None]], switches: dict[str, str]) -> Graph:
    fabric = Fabric()
    for where, one, other, rate in cables:
        if {one.key, other.key} & _NO_LID:
            raise TopologyError(
                f"{where}: a LID is 0 or 65535, so no subnet manager runs and peers cannot be told apart; "
                f"give the output of ibnetdiscover, or of iblinkinfo -l"
            )
        fabric.cable(where, _port(fabric, where, one, switches), _port(fabric, where, other, switches), rate)
    return layered(fabric.graph())


def _port(fabric: Fabric, where: str, end: _End, switches: dict[str, str]) -> Port:
    """A port as the fabric knows it."""
    is_switch = end.key in switches
    guid = switches[end.key].zfill(16) if is_switch else f"port-{end.key}"
    return fabric.port(where, guid, end.port, is_switch=is_switch, description=end.name)
