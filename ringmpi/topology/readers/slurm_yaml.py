"""Slurm's topology.yaml: a list of layouts, each named, one of them the default.

Source: topology.yaml(5) of Slurm 26.05. PyYAML reads the file (extra `yaml`).
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from ringmpi.errors import TopologyError
from ringmpi.topology.building import Builder, Source, some
from ringmpi.topology.graph import Graph
from ringmpi.topology.hostlist import expand
from ringmpi.topology.readers import slurm_layouts
from ringmpi.topology.readers.slurm_layouts import Named, Region, Torus

_RECOGNISED = re.compile(r"\s*-?\s*\{?\s*topology\s*:")
_LAYOUTS = ("tree", "block", "ring", "torus3d", "flat")


def recognise(source: Source) -> bool:
    """Whether a layout begins somewhere."""
    return any(map(_RECOGNISED.match, source.sample))


def read(source: Source, name: str | None = None) -> Graph:
    """The layout called `name`; without one, the first that says `cluster_default: true`, or else the first."""
    document = _Yaml(source).document()
    layouts = document.entries()
    if not layouts:
        raise TopologyError(f"{document.where}: a list of layouts is needed, each beginning with topology: NAME")
    names = [layout.need("topology").text() for layout in layouts]
    if name is not None and name not in names:
        raise TopologyError(f"{document.where}: no layout is called {name!r}; there are {some(names)}")
    defaults = [
        layout for layout in layouts if (mark := layout.get("cluster_default")) and mark.text().lower() == "true"
    ]
    chosen = layouts[names.index(name)] if name is not None else (defaults or layouts)[0]
    return _layout(chosen)


class _Yaml:
    """The file as PyYAML's nodes, which know their lines."""

    def __init__(self, source: Source) -> None:
        try:
            self.yaml: Any = importlib.import_module("yaml")
        except ImportError:
            raise TopologyError(
                f"{source.name}: YAML is read by PyYAML, which is missing: pip install PyYAML"
            ) from None
        self.source = source

    def document(self) -> _Part:
        """The root of the file."""
        loader = getattr(self.yaml, "CSafeLoader", self.yaml.SafeLoader)
        try:
            root = self.yaml.compose(self.source.text, Loader=loader)
        except self.yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = self.source.at(mark.line + 1) if mark else self.source.name
            raise TopologyError(f"{where}: not valid YAML: {getattr(error, 'problem', error)}") from None
        return _Part(self.source, root)


class _Part:
    """One node of the file: a mapping, a list or a text, and where it is."""

    def __init__(self, source: Source, node: Any) -> None:
        self.source, self.node = source, node
        self.where = source.at(node.start_mark.line + 1) if node is not None else source.name

    def entries(self) -> list[_Part]:
        """The parts of a list; of one thing alone, that thing."""
        if self.node is None:
            return []
        value = self.node.value if self.node.id == "sequence" else [self.node]
        return [_Part(self.source, node) for node in value]

    def mapping(self) -> dict[str, _Part]:
        """The parts of a mapping, by key."""
        if self.node is None or self.node.id != "mapping":
            raise TopologyError(f"{self.where}: expected a mapping, KEY: VALUE")
        return {str(key.value): _Part(self.source, value) for key, value in self.node.value}

    def get(self, key: str) -> _Part | None:
        """The part under `key`, if there is one."""
        return self.mapping().get(key)

    def need(self, key: str) -> _Part:
        """The part under `key`."""
        part = self.get(key)
        if part is None:
            raise TopologyError(
                f"{self.where}: key {key!r} is missing here; there are {some(self.mapping()) or 'none'}"
            )
        return part

    def text(self) -> str:
        """A single value."""
        if self.node is None or self.node.id != "scalar":
            raise TopologyError(f"{self.where}: expected a single value")
        return str(self.node.value)

    def names(self) -> list[str]:
        """A hostlist, or a list of them."""
        return [name for part in self.entries() for name in expand(part.text(), part.where)]

    def number(self) -> int:
        """A whole number from 0."""
        if not re.fullmatch(r"\d{1,9}", self.text()):
            raise TopologyError(f"{self.where}: {self.text()[:40]!r} is not a whole number >= 0")
        return int(self.text())

    def numbers(self) -> tuple[int, ...]:
        """x, y and z."""
        return tuple(self.need(axis).number() for axis in "xyz")


def _layout(layout: _Part) -> Graph:
    found = [key for key in layout.mapping() if key in _LAYOUTS]
    if len(found) != 1:
        raise TopologyError(
            f"{layout.where}: one of {', '.join(_LAYOUTS)} is needed; there are {some(found) or 'none'}"
        )
    body = layout.need(found[0])
    if found == ["tree"]:
        return slurm_layouts.tree([_named(part, "switch") for part in body.need("switches").entries()])
    if found == ["block"]:
        sizes = [part.number() for part in body.need("block_sizes").entries()]
        if 0 in sizes:
            raise TopologyError(f"{body.where}: a block size is 0; a block holds nodes")
        return slurm_layouts.block([_named(part, "block") for part in body.need("blocks").entries()], sizes)
    if found == ["ring"]:
        return slurm_layouts.ring([_named(part, "ring") for part in body.need("rings").entries()])
    if found == ["torus3d"]:
        return slurm_layouts.torus([_torus(part) for part in body.need("toruses").entries()])
    builder = Builder()
    builder.remark(f"{layout.where}: a flat layout names no nodes and no links")
    return builder.graph("none")


def _named(part: _Part, key: str) -> Named:
    nodes, children = part.get("nodes"), part.get("children")
    return Named(
        part.where,
        part.need(key).text(),
        nodes.names() if nodes else [],
        children.names() if children else [],
    )


def _torus(part: _Part) -> Torus:
    shape = part.need("dims").numbers()
    if 0 in shape:
        raise TopologyError(f"{part.where}: dimensions {shape}; each is at least 1")
    nodes, regions = part.get("nodes"), part.get("regions")
    if (nodes is None) == (regions is None):
        raise TopologyError(f"{part.where}: a torus has either nodes or regions")
    if nodes is not None:
        filled = [Region(nodes.where, (0, 0, 0), shape, nodes.names())]
    else:
        assert regions is not None
        filled = [
            Region(r.where, r.need("anchor").numbers(), r.need("dims").numbers(), r.need("nodes").names())
            for r in regions.entries()
        ]
    return Torus(part.where, part.need("name").text(), shape, filled)
