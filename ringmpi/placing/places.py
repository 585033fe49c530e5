"""All ranks of a ring agree on where each of them sits in it: one looks at the network, all take its answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Protocol

from ringmpi.comm.agreement import agree, from_first, together
from ringmpi.errors import TopologyError
from ringmpi.placing.link_rates import LinkTimes, TimedRing, time_links
from ringmpi.placing.wishes import AUTO, LAUNCHER, MEASURE, Placement
from ringmpi.topology.at_hand import Whereabouts, network_at_hand
from ringmpi.topology.building import some
from ringmpi.topology.graph import Graph
from ringmpi.topology.hostlist import fold
from ringmpi.topology.measured import graph_of_rates
from ringmpi.topology.measured_cache import cache_file, keep_graph, kept_graph
from ringmpi.topology.reading import read
from ringmpi.topology.ring_choice import RingChoice, choose_ring, choose_together

log = logging.getLogger("ringmpi")
STEP = "placing the ring"


class PlacingRing(TimedRing, Protocol):
    """A ring in the order of the launcher whose ranks may get other places."""

    @property
    def node(self) -> str:
        """Host of this rank."""
        ...


def choose_places(ring: PlacingRing, placement: Placement, environment: Mapping[str, str]) -> RingChoice | None:
    """The ring that `placement` asks for; None: that of the launcher, and nothing was looked at. Collective.

    Parameters
    ----------
    ring : PlacingRing
        In the order of the launcher.
    placement : str, path, or several paths
        "launcher"; "auto", what is at hand; "measure", rates between hosts; or files that describe the network.
    environment : mapping
        Of this rank: what Slurm tells it, and where a cache may be.

    Raises
    ------
    TopologyError
        On all ranks alike: a file cannot be understood, or knows none of the hosts.
    RingError
        On all ranks alike: they ask for different placements.
    """
    wish = together(ring, STEP, lambda: _wish(placement), checks=True)
    agree(ring, "placement", lambda: repr(wish))
    if wish == LAUNCHER:
        return None
    ranks = ring.exchange(Whereabouts.here(ring.node, environment), STEP)
    hosts = tuple(rank.host for rank in ranks)
    if wish in (AUTO, MEASURE) and len(set(hosts)) == 1:
        return None
    if wish == MEASURE:
        return _of_rates(ring, hosts, environment)
    choose = (lambda: _of_what_is_at_hand(ranks)) if wish == AUTO else (lambda: _of_files(wish, hosts))
    return from_first(ring, STEP, choose)


def _wish(placement: Placement) -> str | tuple[str, ...]:
    """A word, or the paths of files."""
    if placement in (LAUNCHER, AUTO, MEASURE):
        return str(placement)
    paths = (placement,) if isinstance(placement, str | PathLike) else placement
    return tuple(fspath(path) for path in paths)


def _of_what_is_at_hand(ranks: Sequence[Whereabouts]) -> RingChoice | None:
    network, remarks = network_at_hand(ranks)
    for remark in remarks:
        log.info("placement: %s", remark)
    choice = choose_ring(network.source, network.graph, network.hosts) if network else None
    choice = choice or choose_together([rank.host for rank in ranks])
    return _told(choice) if choice else None


def _of_files(paths: Sequence[str], hosts: Sequence[str]) -> RingChoice:
    name = ", ".join(paths)
    choice = choose_ring(name, read(paths), hosts)
    if len(choice.unplaced) == choice.hosts:
        raise TopologyError(
            f"{name}: knows none of the hosts of this job: {some(choice.unplaced)}. Give a description of the machine "
            f'that it runs on, or placement = "auto"'
        )
    return _told(choice)


def _of_rates(ring: PlacingRing, hosts: Sequence[str], environment: Mapping[str, str]) -> RingChoice | None:
    """By rates between hosts, from the cache or measured now: by the first rank of each host, while others wait."""
    path = cache_file(hosts, environment)
    kept = from_first(ring, STEP, lambda: kept_graph(path, hosts))
    firsts = {host: hosts.index(host) for host in hosts}
    if kept:
        return from_first(ring, STEP, lambda: _told(choose_ring(str(path), kept, hosts)))
    times = time_links(ring, list(firsts.values()))

    def choose() -> RingChoice | None:
        return _told(choose_ring("measured rates", _measured(list(firsts), times, path), hosts)) if times else None

    return from_first(ring, STEP, choose)


def _measured(hosts: Sequence[str], times: LinkTimes, path: Path) -> Graph:
    graph = graph_of_rates(hosts, times.rates, times.latencies)
    failure = keep_graph(path, graph)
    log.info("placement: measured rates %s", f"cannot be kept: {failure}" if failure else f"kept in {path}")
    return graph


def _told(choice: RingChoice) -> RingChoice:
    """The choice, after rank 0 has told it."""
    log.info("placement by %s", choice.sentence())
    if choice.unplaced:
        log.warning(
            "placement: %d hosts are not in %s, or have no link there; where the ring is placed they come one "
            "after another: %s",
            len(choice.unplaced),
            choice.source,
            fold(choice.unplaced),
        )
    return choice
