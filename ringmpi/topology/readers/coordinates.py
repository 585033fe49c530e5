"""A map of coordinates: one host a line with its place on a mesh or torus, as a batch system or a job can print it.

Made for machines that tell each rank its place (Fugaku: `FJMPI_Topology_get_shape` and its kin, Fujitsu MPI User's
Guide; Blue Gene: `MPIX_Rank2torus`) and have no file to give.
"""

from __future__ import annotations

import math
import re

from ringmpi.errors import TopologyError
from ringmpi.topology.building import MOST_VERTICES, Builder, Source, uncommented
from ringmpi.topology.graph import Graph, Grid

_SHAPE = re.compile(r"(torus|mesh)\s+(\d{1,6}[tm]?(?:x\d{1,6}[tm]?)*)", re.IGNORECASE)
_PLACE = re.compile(r"([^\s,()]+)[\s,]+\(?\s*(\d{1,6}(?:[\s,]+\d{1,6})*)\s*\)?")
_SEVERAL = re.compile(r"[^\s,()]+[\s,]+\(?\s*\d{1,6}(?:[\s,]+\d{1,6})+\s*\)?")


def recognise(source: Source) -> bool:
    """Whether the first line gives a shape, as torus 4x4x2, or every line has a host and two or more numbers."""
    lines = uncommented(source.sample)
    return bool(lines) and bool(_SHAPE.fullmatch(lines[0]) or all(map(_SEVERAL.fullmatch, lines)))


def read(source: Source) -> Graph:
    """Hosts on a grid. The first line may give its shape (torus 4x4x2; torus 4x4x2m: the last does not wrap).

    Without it, the shape is the least that holds all hosts, and nothing is known to wrap.
    """
    builder = Builder()
    shape: tuple[int, ...] = ()
    wrap: tuple[bool, ...] = ()
    places: dict[tuple[int, ...], str] = {}
    for where, line in source.uncommented():
        if (found := _SHAPE.fullmatch(line)) and not places and not shape:
            shape, wrap = _shape(found, where)
            continue
        placed = _PLACE.fullmatch(line)
        if placed is None:
            raise TopologyError(f"{where}: {line[:60]!r}; expected a host and its place, as n01 0 3 1 or n01 (0,3,1)")
        place = tuple(map(int, re.split(r"[\s,]+", placed[2])))
        _check(place, where, shape=shape or tuple(n + 1 for n in place), places=places, host=placed[1])
        if placed[1] in builder.hosts:
            raise TopologyError(f"{where}: host {placed[1]!r} has a place already; every host has one")
        places[place] = builder.host(placed[1], where)
    if not places:
        raise TopologyError(f"{source.name}: no host has a place; add lines such as n01 0 3 1")
    if not shape:
        shape = tuple(max(axis) + 1 for axis in zip(*places, strict=True))
        wrap = (False,) * len(shape)
        builder.remark(f"{source.name}: no first line such as torus {'x'.join(map(str, shape))}: taken for a mesh")
    builder.grid(Grid(source.name, shape, wrap, {host: place for place, host in places.items()}))
    return builder.graph("torus")


def _shape(found: re.Match[str], where: str) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    sizes = found[2].lower().split("x")
    shape = tuple(int(size.rstrip("tm")) for size in sizes)
    if not 0 < math.prod(shape) <= MOST_VERTICES:
        raise TopologyError(f"{where}: shape {found[2]} has {math.prod(shape)} places; expected 1 to {MOST_VERTICES}")
    return shape, tuple((size[-1] if size[-1] in "tm" else found[1][0].lower()) == "t" for size in sizes)


def _check(
    place: tuple[int, ...], where: str, *, shape: tuple[int, ...], places: dict[tuple[int, ...], str], host: str
) -> None:
    """Refuse a place outside the shape, with another number of coordinates, or held by another host."""
    others = len(next(iter(places), shape))
    if len(place) != len(shape) or len(place) != others or any(a >= n for a, n in zip(place, shape, strict=True)):
        raise TopologyError(
            f"{where}: place {place} of {host!r} does not lie in {'x'.join(map(str, shape))}; correct it"
        )
    if place in places:
        raise TopologyError(
            f"{where}: place {place} is given to {places[place]!r} and to {host!r}; a place takes one host"
        )
