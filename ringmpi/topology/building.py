"""What the readers share: the text of a file with its line numbers, and a graph under construction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ringmpi.errors import TopologyError
from ringmpi.topology.graph import Graph, Grid, Kind, Link, bundled

MOST_VERTICES = 1 << 20
BEGINNING = 1 << 16
LONGEST_LINE = 1000
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")  # colours and underlines of a terminal (ECMA-48, CSI sequences)


@dataclass(frozen=True)
class Source:
    """A text and where it comes from.

    Attributes
    ----------
    name : str
        Path of the file, or what else the text is.
    text : str
        Without byte order mark and terminal colours; lines end with a newline alone.
    """

    name: str
    text: str

    @classmethod
    def of_bytes(cls, name: str, content: bytes) -> Source:
        """Decode a file: UTF-8 or UTF-16 with a mark, and Latin-1 where the bytes are neither."""
        if content.startswith((b"\xff\xfe", b"\xfe\xff")):
            text = content.decode("utf-16", errors="replace")
        else:
            try:
                text = content.decode("utf-8-sig")
            except UnicodeDecodeError:
                text = content.decode("latin-1")
        if "\0" in text:
            raise TopologyError(
                f"{name}: contains zero bytes, so it is not text; give a file of one of the known formats"
            )
        return cls(name, _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n"))

    @cached_property
    def lines(self) -> list[str]:
        """Lines without their ends."""
        return self.text.split("\n")

    @cached_property
    def sample(self) -> list[str]:
        """The beginning, which is enough to tell the format: the first lines, none of them whole if it is long."""
        return [line[:LONGEST_LINE] for line in self.text[:BEGINNING].split("\n")]

    def numbered(self, longest: int = LONGEST_LINE) -> Iterator[tuple[str, str]]:
        """Every line as "file:number" and its text; patterns are tried on it, so it must not be endless."""
        for number, line in enumerate(self.lines, 1):
            if len(line) > longest:
                raise TopologyError(f"{self.at(number)}: a line of {len(line)} characters; at most {longest} are read")
            yield self.at(number), line

    def uncommented(self, longest: int = LONGEST_LINE) -> Iterator[tuple[str, str]]:
        """As `numbered`, without what follows a #, blanks around, and empty lines."""
        for where, line in self.numbered(longest):
            if text := line.partition("#")[0].strip():
                yield where, text

    def at(self, number: int) -> str:
        """Where line `number` is, for messages."""
        return f"{self.name}:{number}"


class Builder:
    """A graph under construction: names are checked, everything keeps the order in which it came."""

    def __init__(self) -> None:
        self.hosts: dict[str, None] = {}
        self.switches: dict[str, None] = {}
        self.labels: dict[str, str] = {}
        self.links: list[Link] = []
        self.parents: dict[str, dict[str, None]] = {}
        self.grids: list[Grid] = []
        self.remarks: list[str] = []

    def host(self, name: str, where: str) -> str:
        """Add a host, if it is new."""
        self._check(name, where, taken=self.switches)
        self.hosts[name] = None
        return name

    def switch(self, name: str, where: str, label: str = "") -> str:
        """Add a switch, if it is new."""
        self._check(name, where, taken=self.hosts)
        self.switches[name] = None
        if label and label != name:
            self.labels.setdefault(name, label)
        return name

    def _check(self, name: str, where: str, *, taken: dict[str, None]) -> None:
        if name in taken:
            raise TopologyError(f"{where}: {name!r} names both a host and a switch; rename one of the two")
        if not name or len(self.hosts) + len(self.switches) >= MOST_VERTICES:
            raise TopologyError(f"{where}: a name is empty, or there are more than {MOST_VERTICES} hosts and switches")

    def link(self, a: str, b: str, *, capacity: float = 1.0, cables: int = 1, rail: str = "") -> None:
        """Add cables between two vertices. A cable from a vertex to itself tells nothing and is dropped."""
        if a != b:
            self.links.append(Link((a, b), capacity, cables, (rail,) if rail else ()))

    def under(self, child: str, parent: str, *, capacity: float = 1.0) -> None:
        """Hang `child` below `parent`, with a link."""
        above = self.parents.setdefault(child, {})
        if parent not in above:
            above[parent] = None
            self.link(child, parent, capacity=capacity)

    def grid(self, grid: Grid) -> None:
        """Add a box of vertices that are there already, and the links between neighbours."""
        self.grids.append(grid)
        places = {place: vertex for vertex, place in grid.coordinates.items()}
        for place, vertex in places.items():
            for following in _next_places(place, grid):
                if following in places:
                    self.link(vertex, places[following])

    def remark(self, text: str) -> None:
        """Note what could not be placed; `text` begins with file and line."""
        self.remarks.append(text)

    def graph(self, kind: Kind, *, unit: str = "cables") -> Graph:
        """What has been added."""
        return Graph(
            kind,
            hosts=tuple(self.hosts),
            switches=tuple(self.switches),
            links=bundled(self.links),
            parents={child: tuple(above) for child, above in self.parents.items()},
            grids=tuple(self.grids),
            labels=self.labels,
            unit=unit,
            remarks=tuple(self.remarks),
        )


def _next_places(place: tuple[int, ...], grid: Grid) -> Iterator[tuple[int, ...]]:
    """The neighbour one step up in each dimension. A dimension of two has one cable, so its wrap is not counted."""
    for axis, (size, wrap) in enumerate(zip(grid.shape, grid.wrap, strict=True)):
        up = place[axis] + 1
        if up < size or (wrap and size > 2):
            yield (*place[:axis], up % size, *place[axis + 1 :])


def box_places(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All places of a box, the first dimension fastest."""
    strides = [1]
    for size in shape:
        strides.append(strides[-1] * size)
    for index in range(strides[-1]):
        yield tuple(index // stride % size for stride, size in zip(strides, shape, strict=False))


def uncommented(lines: Iterable[str]) -> list[str]:
    """Lines without what follows a #, blanks around, and empty ones."""
    return [text for line in lines if (text := line.partition("#")[0].strip())]


def some(names: Iterable[str], most: int = 5) -> str:
    """A few names for a message, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
