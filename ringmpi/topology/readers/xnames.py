"""Cray's and HPE's names of places: x1000c0s1b0n0 (EX), c2-0c1s7n3 (XC). One host a line, beside its xname.

Source: `xnametypes` of Cray-HPE/hms-xname; "Cori interconnect" of docs.nersc.gov (two cabinets of an XC make a group).
The number of an EX cabinet tells nothing of its group: where Slurm's topology.conf exists, it knows better.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ringmpi.errors import TopologyError
from ringmpi.topology.building import Builder, Source, uncommented
from ringmpi.topology.graph import Graph
from ringmpi.topology.hostlist import expand

_EX = re.compile(r"(x\d{1,5})(c\d)(s\d{1,3})(b\d{1,2})n\d{1,3}")
_XC = re.compile(r"c(\d{1,3})-(\d{1,3})(c\d)(s\d{1,2})n\d")
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")


def recognise(source: Source) -> bool:
    """Whether every line holds a place."""
    lines = uncommented(source.sample)
    return bool(lines) and all(any(_first_place(word) for word in line.split()) for line in lines)


def _first_place(word: str) -> bool:
    """Whether a word is an xname, or a list of xnames in brackets."""
    short = re.sub(r"\[(\d{1,5})[^\]]*\]", r"\1", word.partition(",")[0])
    return bool(_EX.fullmatch(short) or _XC.fullmatch(short))


def read(source: Source) -> Graph:
    """Lines such as "nid000001 x1000c0s0b0n0", with an IP address or without, or xnames alone, also n[1-4] written."""
    hosts: list[tuple[str, str, str]] = []
    for where, line in source.uncommented():
        places = [word for word in line.split() if _first_place(word)]
        names = [word for word in line.split() if word not in places and not _ADDRESS.fullmatch(word)]
        if not places:
            raise TopologyError(f"{where}: {line[:60]!r} has no place; expected x1000c0s0b0n0 or c0-0c0s0n0")
        if names:
            hosts.append((where, names[0], places[0]))
        else:
            hosts += [(where, name, name) for name in expand(places[0], where)]
    return graph_of(hosts)


def from_names(hosts: Iterable[str]) -> Graph | None:
    """The graph of hosts whose own names are places; None if one is not."""
    named = list(hosts)
    if not named or not all(_EX.fullmatch(host) or _XC.fullmatch(host) for host in named):
        return None
    return graph_of([("host names", host, host) for host in named])


def graph_of(hosts: Iterable[tuple[str, str, str]]) -> Graph:
    """Group, cabinet, chassis, blade: what encloses each host, given as (where, host, place)."""
    builder = Builder()
    tops: dict[str, str] = {}
    for where, host, place in hosts:
        child = builder.host(host, where)
        for part in reversed(_enclosing(place, where)):
            builder.under(child, builder.switch(part, where))
            child = part
        tops.setdefault(child, where)
    if len(tops) > 1:
        for top, where in tops.items():
            builder.under(top, builder.switch("all cabinets", where))
    return builder.graph("dragonfly")


def _enclosing(place: str, where: str) -> list[str]:
    """Names of what a place is in, the largest first."""
    if found := _EX.fullmatch(place):
        cabinet, chassis, slot, board = found.groups()
        return [cabinet, cabinet + chassis, cabinet + chassis + slot, cabinet + chassis + slot + board]
    if found := _XC.fullmatch(place):
        column, row, chassis, slot = found.groups()
        cabinet = f"c{column}-{row}"
        return [f"group {int(column) // 2}-{row}", cabinet, cabinet + chassis, cabinet + chassis + slot]
    raise TopologyError(f"{where}: {place[:60]!r} is not a place; expected x1000c0s0b0n0 or c0-0c0s0n0")
