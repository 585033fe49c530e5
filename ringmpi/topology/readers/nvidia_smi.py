"""What `nvidia-smi topo -m` prints: how GPUs and network adapters of a host are connected.

Source: the legend that the tool prints; matrices quoted in NCCL's and DeepEP's issues. Columns are tabs or blanks, the
last ones (CPU Affinity, NUMA Affinity, GPU NUMA ID) have names with blanks, adapters' rows are shorter.
"""

from __future__ import annotations

import re

from ringmpi.errors import TopologyError
from ringmpi.topology.building import Source
from ringmpi.topology.graph import EVERY_HOST, Graph
from ringmpi.topology.node import NEARNESS, Device, Node

_DEVICE = re.compile(r"GPU\d+|NIC\d+|(?:mlx|hfi|bnxt|irdma|efa|cxi|roce|ib)\w*")
_HEADER = re.compile(r"\s*GPU0\s.*")
_LEGEND = re.compile(r"\s*(NIC\d+)\s*:\s*(\S+)\s*")
_OLD_WORDS = {"SOC": "SYS"}  # drivers before 2017
_RECOGNISED = re.compile(r"\s*GPU0\s+X\s")


def recognise(source: Source) -> bool:
    """Whether some line is the row of GPU0."""
    return any(map(_RECOGNISED.match, source.sample))


def read(source: Source) -> Graph:
    """The devices, for every host that has no file of its own."""
    columns: list[str] = []
    cells: dict[tuple[str, str], str] = {}
    numa: dict[str, int | None] = {}
    for where, line in source.numbered():
        words = line.split()
        if not columns and _HEADER.fullmatch(line):
            columns = [word for word in words if _DEVICE.fullmatch(word)]
        elif columns and words and words[0] in columns and words[0] not in numa:
            row = words[1 : 1 + len(columns)]
            if len(row) < len(columns):
                raise TopologyError(f"{where}: {len(row)} cells for {len(columns)} devices; give the output unchanged")
            cells |= {(words[0], column): _word(cell, where) for column, cell in zip(columns, row, strict=True)}
            numa[words[0]] = _numa(words[1 + len(columns) :])
    if missing := [column for column in columns if column not in numa]:
        raise TopologyError(f"{source.name}: no row for {', '.join(missing[:5])}; give the output unchanged")
    return Graph("none", devices={EVERY_HOST: _node(source, cells, numa)})


def _word(cell: str, where: str) -> str:
    word = _OLD_WORDS.get(cell, cell)
    if word not in {*NEARNESS} - {"NV"} and not re.fullmatch(r"NV\d{1,3}", word):
        raise TopologyError(
            f"{where}: {cell[:20]!r} is not a connection; expected {', '.join(NEARNESS)} or NV with a number"
        )
    return word


def _numa(affinities: list[str]) -> int | None:
    """The NUMA node, second of the columns behind the matrix; None for an adapter, or where it is N/A."""
    return int(affinities[1]) if len(affinities) > 1 and re.fullmatch(r"\d{1,4}", affinities[1]) else None


def _node(source: Source, cells: dict[tuple[str, str], str], numa: dict[str, int | None]) -> Node:
    names = {
        old: new for _, line in source.numbered() if (found := _LEGEND.fullmatch(line)) for old, new in [found.groups()]
    }
    devices = tuple(
        Device(names.get(name, name), "gpu" if name.startswith("GPU") else "nic", number)
        for name, number in numa.items()
    )
    renamed = {(names.get(a, a), names.get(b, b)): word for (a, b), word in cells.items()}
    nvlinks = {pair: float(word[2:]) for pair, word in renamed.items() if word.startswith("NV")}
    return Node(devices, {pair: "NV" if pair in nvlinks else word for pair, word in renamed.items()}, nvlinks)
