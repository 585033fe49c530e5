"""How long hops take on a machine: of every hop, the busiest cable on its route, and the latency of its links.

All ranks send at once, so a cable is busy for all the bytes that pass it in a ring step, and a hop has landed when
the busiest cable on its route is free again. For the slowest hop that is what fair sharing gives: every hop that
passes the busiest cable gets an equal part of it, and no other cable holds it up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ringmpi.errors import ConfigError, TopologyError
from ringmpi.planner.machines import Rates
from ringmpi.topology.building import some
from ringmpi.topology.cost import Cost, ring_cost
from ringmpi.topology.graph import GIGABIT, Graph
from ringmpi.topology.job import find_job
from ringmpi.topology.routing import routes_between

Ints = NDArray[np.int64]
Seconds = NDArray[np.float64]
MOST_GATHERED = 512  # ranks: all pairs of them have a route
LEVELS = 16


class Network:
    """The machine under a job, with rates.

    Parameters
    ----------
    graph : Graph
    hosts : sequence of str
        Host of each rank, in launch order.
    rates : Rates
        `bandwidth` is what a hop inside a host moves, and, where the files tell no Gbit/s, the fastest cable too.
    latency : float
        Seconds that each link adds; a hop inside a host takes them once.

    Raises
    ------
    TopologyError
        If the files tell no link, or a host is not in them.
    """

    def __init__(self, graph: Graph, hosts: Sequence[str], rates: Rates, latency: float) -> None:
        job = find_job(graph, hosts)
        if not graph.links and not graph.grids:
            raise TopologyError(f"{len(graph.hosts):,} hosts but no links are known: give a file that lists links.")
        if job.unplaced:
            raise TopologyError(
                f"hosts without a link in the topology: {some(job.unplaced)}; name others with --hosts, or complete "
                f"the file."
            )
        self.graph, self.rates, self.latency = graph, rates, latency
        self.routes = routes_between(graph, job.launch)
        number = {host: place for place, host in enumerate(self.routes.hosts)}
        self.launch = np.array([number[host] for host in job.launch], np.int64)

    @cached_property
    def fastest(self) -> float:
        """Bytes per second of the fastest cable, each way."""
        if self.graph.unit == "Gbit/s":
            return GIGABIT * max(link.capacity / link.cables for link in self.graph.links)
        return self.rates.bandwidth

    def seconds_a_byte(self) -> Seconds:
        """Of every cable that a route has met so far, each direction by itself."""
        return np.array(self.routes.slowness, np.float64) / self.fastest

    def routes_of_messages(self, sources: Ints, targets: Ints) -> Routes:
        """The routes of one message from each of `sources` to each of `targets`, hosts by number."""
        cables = [self.routes.links(a, b) for a, b in zip(sources.tolist(), targets.tolist(), strict=True)]
        return Routes(
            np.array([len(route) for route in cables], np.int64), np.concatenate([[], *cables]).astype(np.int64)
        )


@dataclass(frozen=True)
class Routes:
    """The routes of some messages.

    Attributes
    ----------
    lengths : int64 [messages]
        Cables that each passes; 0 within a host.
    cables : int64 [all of them]
        Message after message.
    """

    lengths: Ints
    cables: Ints

    @cached_property
    def _message(self) -> Ints:
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def _starts(self) -> Ints:
        """Where the cables of each message begin that passes any."""
        return np.asarray((np.cumsum(self.lengths) - self.lengths)[self.lengths > 0])

    def loads(self, nbytes: Ints, cables: int) -> Seconds:
        """Bytes on each of so many cables, if the messages have `nbytes` each."""
        loads: Seconds = np.bincount(self.cables, nbytes.astype(np.float64)[self._message], cables).astype(np.float64)
        return loads

    def busiest(self, busy: Seconds) -> Seconds:
        """The largest of `busy` [cables] on each route, [messages]; 0 where it passes none."""
        most = np.zeros(len(self.lengths))
        if len(self.cables):
            most[self.lengths > 0] = np.maximum.reduceat(busy[self.cables], self._starts)
        return most


class RingHops:
    """Hops between neighbours: as in every ring step, so in all.

    Parameters
    ----------
    network : Network
    order : sequence of int
        Ring position to launch rank.
    directions : sequence of int
        In which pieces travel.
    """

    def __init__(self, network: Network, order: Sequence[int], directions: Sequence[int]) -> None:
        self._network = network
        self._ring = ring = network.launch[list(order)]
        self.cost: Cost = ring_cost(network.routes, ring.tolist())
        self._routes = network.routes_of_messages(
            np.concatenate([np.roll(ring, direction) for direction in directions]), np.tile(ring, len(directions))
        )
        self._seconds_a_byte = network.seconds_a_byte()
        self._latency = network.latency * np.maximum(self._routes.lengths, 1)
        self._last: tuple[bytes, Seconds] = b"", np.zeros(0)

    def seconds(self, step: int, sent_at: int, arriving: Sequence[Ints]) -> Seconds:
        """As `roofline.Hops`: hops that are due together have left together."""
        nbytes = np.concatenate(arriving)
        key = nbytes.tobytes()
        if key != self._last[0]:  # most steps move what the one before did
            busy = self._routes.loads(nbytes, len(self._seconds_a_byte)) * self._seconds_a_byte
            inside = np.where(self._routes.lengths == 0, nbytes / self._network.rates.bandwidth, 0)
            self._last = key, self._latency + np.maximum(self._routes.busiest(busy), inside)
        return self._last[1].reshape(len(arriving), -1)

    @cached_property
    def bandwidth(self) -> float:
        """Bytes per second of the slowest neighbours where all ranks send as much, latency not counted."""
        block, directions = 1 << 40, len(self._routes.lengths) // len(self._ring)
        seconds = self.seconds(0, 0, [np.full(len(self._ring), block // directions, np.int64)] * directions)
        return block / float((seconds.ravel() - self._latency).max())


class GatherHops:
    """Hops from the owner of a piece to every rank, which all leave with the first step and share the cables fairly.

    A message has landed when its cables have carried as much of every other one that passes there, or all of it.

    Parameters
    ----------
    network : Network
    order : sequence of int
        Ring position to launch rank.
    due : int64 [ranks, steps]
        Bytes that must have come to a rank before each step.

    Raises
    ------
    ConfigError
        On more than 512 ranks.
    """

    def __init__(self, network: Network, order: Sequence[int], due: Ints) -> None:
        size = len(order)
        if size > MOST_GATHERED:
            raise ConfigError(
                f"all-gather is timed on a topology with up to {MOST_GATHERED:,} ranks, not with {size:,}. Use "
                f"schedule = ring, or leave --topology out."
            )
        neighbours = RingHops(network, order, (1,))
        self.cost, self.bandwidth = neighbours.cost, neighbours.bandwidth
        ring, steps = network.launch[list(order)], due.shape[1]
        sources = np.concatenate([np.roll(ring, step) for step in range(steps)])
        routes = network.routes_of_messages(sources, np.tile(ring, steps))
        nbytes = np.ascontiguousarray(due.T).ravel()
        inside = np.where(routes.lengths == 0, nbytes / network.rates.bandwidth, 0)
        seconds = np.maximum(_shared(routes, nbytes, network.seconds_a_byte()), inside)
        self._seconds = (seconds + network.latency * np.maximum(routes.lengths, 1)).reshape(steps, size)

    def seconds(self, step: int, sent_at: int, arriving: Sequence[Ints]) -> Seconds:
        """As `roofline.Hops`."""
        gathered: Seconds = self._seconds[step][None]
        return gathered


def _shared(routes: Routes, nbytes: Ints, seconds_a_byte: Seconds) -> Seconds:
    """When each message has landed if all leave at once, [messages]; sizes are told apart in `LEVELS` steps."""
    seconds, levels = np.zeros(len(nbytes)), np.unique(nbytes[nbytes > 0])
    for level in levels[np.unique(np.linspace(0, len(levels) - 1, LEVELS).astype(int))] if len(levels) else ():
        busy = routes.loads(np.minimum(nbytes, level), len(seconds_a_byte)) * seconds_a_byte
        last = (nbytes > 0) & (nbytes <= level) & (seconds == 0)
        seconds[last] = routes.busiest(busy)[last]
    return seconds
