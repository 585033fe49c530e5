"""The XML that hwloc's `lstopo --of xml` writes: what is inside a host.

Source: hwloc's `hwloc2.dtd` and `include/hwloc.h`. Versions 2 and 3, which number the kinds of OS devices differently,
and version 1, which knows no NVLinks.
"""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

from ringmpi.errors import TopologyError
from ringmpi.topology.building import Source
from ringmpi.topology.graph import EVERY_HOST, Graph
from ringmpi.topology.node import Device, Node

MOST_LEVELS = 100
_GPU = ("cuda", "nvml", "rsmi", "ze", "opencl")  # how the back-ends of hwloc call a GPU, the best name first
_GPU_NAME = re.compile(r"(cuda|nvml|rsmi|ze|opencl)\d.*")
_VERBS_BEFORE_3, _VERBS_BIT = 3, 32  # HWLOC_OBJ_OSDEV_OPENFABRICS: a number, a bit since version 3


def recognise(source: Source) -> bool:
    """Whether this is XML with a topology in it."""
    return source.text.lstrip().startswith("<") and "<topology" in source.text[:2000]


def read(source: Source) -> Graph:
    """GPUs and verbs adapters of the host that the file names; of every host where it names none."""
    if "<!ENTITY" in source.text:
        raise TopologyError(
            f"{source.name}: declares XML entities, which hwloc never does; give the file that lstopo wrote"
        )
    try:
        root = ElementTree.fromstring(source.text)
    except ElementTree.ParseError as error:
        raise TopologyError(f"{source.at(error.position[0])}: not valid XML: {error.msg}") from None
    machine = _Machine(root, source)
    hosts = [info.get("value", "") for info in root.iter("info") if info.get("name") == "HostName"]
    return Graph("none", devices={next(filter(None, hosts), EVERY_HOST): machine.node()})


class _Machine:
    """The tree of objects, each with the way to it from the top."""

    def __init__(self, root: ElementTree.Element, source: Source) -> None:
        self.root, self.source = root, source
        self.bits = not root.get("version", "1.0").startswith(("1", "2"))
        self.ways: dict[
            str, list[ElementTree.Element]
        ] = {}  # device to its PCI device and what that is in, from the top
        self.objects: dict[str, str] = {}  # gp_index of a device's objects to the device
        self.kinds: dict[str, str] = {}
        waiting = [(child, [root]) for child in reversed(root.findall("object"))]
        while waiting:
            element, way = waiting.pop()
            if len(way) > MOST_LEVELS:
                raise TopologyError(f"{source.name}: objects nested more than {MOST_LEVELS} deep; no machine is")
            inside = element.findall("object")
            if element.get("type") == "PCIDev":
                self._pci_device([*way, element], inside)
            waiting += [(child, [*way, element]) for child in reversed(inside)]

    def _pci_device(self, way: list[ElementTree.Element], inside: list[ElementTree.Element]) -> None:
        """Note a GPU or an adapter that verbs know; several names of one PCI device are one device."""
        systems = [element for element in inside if element.get("type") == "OSDev"]
        gpus = sorted((e.get("name", "") for e in systems if _GPU_NAME.fullmatch(e.get("name", ""))), key=_preference)
        nics = [e.get("name", "") for e in systems if self._speaks_verbs(e.get("osdev_type", ""))]
        for name, kind in [(n, "gpu") for n in gpus[:1]] + [(n, "nic") for n in nics[:1] if n]:
            self.ways[name], self.kinds[name] = way, kind
            self.objects |= {element.get("gp_index", ""): name for element in [*systems, way[-1]]}

    def _speaks_verbs(self, osdev_type: str) -> bool:
        if not re.fullmatch(r"\d{1,4}", osdev_type):
            return False
        return bool(int(osdev_type) & _VERBS_BIT) if self.bits else int(osdev_type) == _VERBS_BEFORE_3

    def node(self) -> Node:
        """The devices with all that is known between them."""
        nvlinks = self._nvlinks()
        pairs = itertools.permutations(self.ways, 2)
        paths = {(a, b): "NV" if (a, b) in nvlinks else _between(self.ways[a], self.ways[b]) for a, b in pairs}
        paths |= {(name, name): "X" for name in self.ways}
        devices = tuple(
            Device(name, "gpu" if self.kinds[name] == "gpu" else "nic", _numa(way)) for name, way in self.ways.items()
        )
        return Node(devices, paths, nvlinks, "MB/s")

    def _nvlinks(self) -> dict[tuple[str, str], float]:
        """Bandwidth of GPU pairs: that of their own links, and through the NVSwitches that both reach."""
        names, rows = _matrix(self.root, self.source)
        gpus = {
            at: self.objects[name]
            for at, name in enumerate(names)
            if self.kinds.get(self.objects.get(name, "")) == "gpu"
        }
        nvswitches = {e.get("gp_index") for e in self.root.iter("object") if e.get("subtype") == "NVSwitch"}
        switches = [at for at, name in enumerate(names) if name in nvswitches]
        found = {}
        for a, b in itertools.permutations(gpus, 2):
            total = rows[a][b] + sum(min(rows[a][switch], rows[switch][b]) for switch in switches)
            if total:
                found[gpus[a], gpus[b]] = float(total)
        return found


def _preference(name: str) -> int:
    return next(rank for rank, prefix in enumerate(_GPU) if name.startswith(prefix))


def _matrix(root: ElementTree.Element, source: Source) -> tuple[list[str], list[list[int]]]:
    """gp_index of the objects and the NVLinkBandwidth between them, in MB/s. Both come in pieces to be joined."""
    for table in root.iter():
        if not table.tag.startswith("distances2") or table.get("name") != "NVLinkBandwidth":
            continue
        names = [word.rpartition(":")[2] for word in _words(table, "indexes")]
        values = [int(word) if re.fullmatch(r"\d{1,18}", word) else 0 for word in _words(table, "u64values")]
        if len(values) != len(names) ** 2:
            raise TopologyError(
                f"{source.name}: NVLinkBandwidth has {len(values)} values for {len(names)} objects; give the whole file"
            )
        return names, [values[start : start + len(names)] for start in range(0, len(values), max(len(names), 1))]
    return [], []


def _words(table: ElementTree.Element, tag: str) -> list[str]:
    return [word for piece in table.findall(tag) for word in (piece.text or "").split()]


def _between(one: list[ElementTree.Element], other: list[ElementTree.Element]) -> str:
    """A word of `NEARNESS` for two devices, by the last object that both are in."""
    common = [a for a, b in zip(one, other, strict=False) if a is b]
    last = common[-1]
    if last.get("type") == "PCIDev":
        return "PIX"
    if last.get("type") == "Bridge":
        if last.get("bridge_type", "").startswith("0"):
            return "PHB"
        below = (way[len(common) :] for way in (one, other))
        bridges = (sum(element.get("type") == "Bridge" for element in part) for part in below)
        return "PIX" if max(bridges) <= 1 else "PXB"
    return "NODE" if _numa(common) is not None else "SYS"


def _numa(way: list[ElementTree.Element]) -> int | None:
    """The NUMA node of the nearest object that belongs to only one."""
    masks = [mask for element in way if (mask := element.get("nodeset"))]
    digits = masks[-1].replace("0x", "").replace(",", "") if masks else ""
    bits = int(digits, 16) if re.fullmatch(r"[0-9a-fA-F]{1,256}", digits) else 0
    return bits.bit_length() - 1 if bits.bit_count() == 1 else None
