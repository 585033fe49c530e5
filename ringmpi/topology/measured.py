"""A machine made of measured rates: hosts that reach one another as fast as their own adapters stand on one switch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import tomli_w
from numpy.typing import NDArray

from ringmpi.topology.building import Builder
from ringmpi.topology.graph import GIGABIT, Graph

SLOWER = 1.3  # times; what lies further apart than that hangs on another switch
LATER = 1.5  # times; latencies are less steady
ROOT = "measured-network"

Matrix = NDArray[np.float64]


@dataclass
class _Switch:
    """Hosts, and switches below it; `nearest` is how far apart the nearest of them are."""

    hosts: list[int]
    nearest: float = np.inf
    below: list[_Switch] = field(default_factory=list)

    @property
    def all_hosts(self) -> list[int]:
        return self.hosts + [host for switch in self.below for host in switch.all_hosts]


def graph_of_rates(hosts: Sequence[str], rates: Matrix, latencies: Matrix) -> Graph:
    """A tree of switches whose hosts reach one another faster than others, level by level.

    Parameters
    ----------
    hosts : sequence of str
    rates : float64 [hosts, hosts], bytes/s
        While all hosts transfer at once. What a host can do at all is the most it did with any other; a pair is slow
        where it is slower than its slower host can be.
    latencies : float64 [hosts, hosts], seconds
        Looked at where the rates tell no switches apart.
    """
    own = rates.max(axis=1)
    slowness = np.maximum(np.minimum(own[:, None], own) / np.where(rates > 0, rates, 1), 1)
    top = _clustered(slowness, SLOWER)
    if not top.below:
        most = np.where(latencies > 0, latencies, np.inf).min(axis=1)
        top = _clustered(np.maximum(latencies / np.maximum(most[:, None], most), 1), LATER)
    builder = Builder()
    for host in hosts:
        builder.host(host, "measured rates")
    _hang(builder, top, ROOT, hosts, rates)
    return builder.graph("tree", unit="Gbit/s")


def _clustered(distance: Matrix, gap: float) -> _Switch:
    """Clusters by average linkage of the logarithm; one that joins at `gap` times its own distances is a switch.

    Source: R. R. Sokal and C. D. Michener, Univ. Kansas Sci. Bull. 38 (1958).
    """
    away = np.log(distance)
    np.fill_diagonal(away, np.inf)
    clusters = {host: _Switch([host]) for host in range(len(away))}
    sizes = np.ones(len(away))
    while len(clusters) > 1:
        a, b = map(int, np.unravel_index(int(away.argmin()), away.shape))
        clusters[a] = _joined(clusters[a], clusters.pop(b), float(away[a, b]), float(np.log(gap)))
        mean = (sizes[a] * away[a] + sizes[b] * away[b]) / (sizes[a] + sizes[b])
        sizes[a] += sizes[b]
        away[a] = away[:, a] = mean
        away[b] = away[:, b] = np.inf
        away[a, a] = np.inf
    return clusters.popitem()[1]


def _joined(one: _Switch, other: _Switch, at: float, gap: float) -> _Switch:
    """Two clusters that are `at` apart: each is a switch below the new one, or part of it if that is not far."""
    joined = _Switch([], at)
    for part in (one, other):
        if at < part.nearest + gap:
            joined.hosts += part.hosts
            joined.below += part.below
            joined.nearest = min(joined.nearest, part.nearest)
        else:
            joined.below.append(part)
    return joined


def _hang(builder: Builder, switch: _Switch, name: str, hosts: Sequence[str], rates: Matrix) -> None:
    """Add a switch with what is below it."""
    builder.switch(name, "measured rates")
    for host in sorted(switch.hosts):
        builder.under(hosts[host], name, capacity=_rounded(float(rates[host].max())))
    for number, below in enumerate(sorted(switch.below, key=lambda each: min(each.all_hosts))):
        child = f"{name}.{number}"
        _hang(builder, below, child, hosts, rates)
        builder.under(child, name, capacity=_rounded(_carried(rates, below.all_hosts)))


def _carried(rates: Matrix, members: list[int]) -> float:
    """What the link above a switch has carried in a round, on average; `members`: the hosts below it.

    Each pair meets in one of the rounds, so that the rates of all pairs that meet over the link, over the rounds, are
    what it carries in one.
    """
    others = np.setdiff1d(np.arange(len(rates)), members)
    rounds = len(rates) - 1 + len(rates) % 2
    return float(rates[members][:, others].sum() / rounds)


def _rounded(rate: float) -> float:
    """bytes/s in Gbit/s, to two digits."""
    return float(f"{max(rate / GIGABIT, 1e-9):.2g}")


def as_toml(graph: Graph, remarks: Iterable[str]) -> str:
    """A tree as a file of our own format (readers/own_toml.py), remarks in front."""
    tables: dict[tuple[str, float], dict[str, list[str]]] = {}
    switches = set(graph.switches)
    for child, (parent,) in graph.parents.items():
        capacity = graph.neighbours[child][parent].capacity
        table = tables.setdefault((parent, capacity), {"hosts": [], "switches": []})
        table["switches" if child in switches else "hosts"].append(child)
    rows = [
        {"name": name, "capacity": capacity, **{kind: ",".join(found) for kind, found in table.items() if found}}
        for (name, capacity), table in tables.items()
    ]
    head = "".join(f"# {remark}\n" for remark in remarks) + tomli_w.dumps({"unit": graph.unit})
    return "\n".join([head, *(f"[[switch]]\n{tomli_w.dumps(row)}" for row in rows)])
