"""Our own description of a machine, for what no other reader covers: TOML with switches, links and grids.

unit = "Gbit/s"                 # of capacities; "cables" if it is not given

[[switch]]                      # a level of a tree
name = "leaf1"
hosts = "n[01-16]"
switches = "..."                # further switches below it
capacity = 400                  # of each link downwards

[[link]]                        # any cables
between = ["leaf1", "spine1"]
cables = 2
capacity = 800                  # of all of them, in each direction

[[grid]]                        # a mesh or torus, the first dimension fastest
name = "pod1"
shape = [4, 4, 2]
wrap = [true, true, false]
hosts = "n[01-32]"
"""

from __future__ import annotations

import math
import re
import tomllib
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ringmpi.errors import TopologyError
from ringmpi.topology.building import MOST_VERTICES, Builder, Source, box_places
from ringmpi.topology.graph import Graph, Grid
from ringmpi.topology.hostlist import expand
from ringmpi.topology.infiniband import layered

_RECOGNISED = re.compile(r"\s*\[\[\s*(?:switch|link|grid)\s*\]\]")
_Capacity = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
_Size = Annotated[int, Field(ge=1, le=MOST_VERTICES)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Switch(_Table):
    name: str
    hosts: str = ""
    switches: str = ""
    capacity: _Capacity = 1.0


class _Link(_Table):
    between: Annotated[list[str], Field(min_length=2, max_length=2)]
    cables: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    capacity: _Capacity | None = None


class _Grid(_Table):
    name: str
    shape: Annotated[list[_Size], Field(min_length=1, max_length=10)]
    hosts: str
    wrap: bool | list[bool] = True


class _Machine(_Table):
    unit: str = "cables"
    switch: list[_Switch] = []
    link: list[_Link] = []
    grid: list[_Grid] = []


def recognise(source: Source) -> bool:
    """Whether a table of switches, links or grids begins somewhere."""
    return any(map(_RECOGNISED.match, source.sample))


def read(source: Source) -> Graph:
    """A torus where there are grids, a tree of switches without further links, or any fabric."""
    try:
        machine = _Machine.model_validate(tomllib.loads(source.text))
    except tomllib.TOMLDecodeError as error:
        raise TopologyError(f"{source.name}: not valid TOML: {error}") from None
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
        raise TopologyError(f"{source.name}: {found}; docs/topology.md shows an example") from None
    builder = Builder()
    for at, switch in enumerate(machine.switch):
        builder.switch(switch.name, f"{source.name}: switch {at}")
    for at, switch in enumerate(machine.switch):
        where = f"{source.name}: switch {at}"
        for child in expand(switch.switches, where):
            builder.under(builder.switch(child, where), switch.name, capacity=switch.capacity)
        for host in expand(switch.hosts, where):
            builder.under(builder.host(host, where), switch.name, capacity=switch.capacity)
    for at, grid in enumerate(machine.grid):
        builder.grid(_grid(grid, builder, f"{source.name}: grid {at}"))
    return _linked(machine, builder, source)


def _grid(table: _Grid, builder: Builder, where: str) -> Grid:
    names = expand(table.hosts, where)
    shape = tuple(table.shape)
    if len(names) != math.prod(shape) or len(set(names)) != len(names):
        raise TopologyError(
            f"{where}: {len(set(names))} different hosts for {math.prod(shape)} places; give one per place"
        )
    wrap = (table.wrap,) * len(shape) if isinstance(table.wrap, bool) else tuple(table.wrap)
    if len(wrap) != len(shape):
        raise TopologyError(f"{where}: {len(wrap)} values of wrap for {len(shape)} dimensions; give one per dimension")
    places = {builder.host(name, where): place for name, place in zip(names, box_places(shape), strict=True)}
    return Grid(table.name, shape, wrap, places)


def _linked(machine: _Machine, builder: Builder, source: Source) -> Graph:
    """Add the links. A vertex that no table names is a host."""
    for at, link in enumerate(machine.link):
        a, b = link.between
        for end in (a, b):
            if end not in builder.switches:
                builder.host(end, f"{source.name}: link {at}")
        capacity = float(link.cables) if link.capacity is None else link.capacity
        builder.link(a, b, capacity=capacity, cables=link.cables)
    if machine.grid:
        return builder.graph("torus", unit=machine.unit)
    if not machine.link:
        return builder.graph("tree", unit=machine.unit)
    builder.parents.clear()
    return layered(builder.graph("fabric", unit=machine.unit))
