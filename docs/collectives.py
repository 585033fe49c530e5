"""Broadcasts of one block to all ranks, and rings in two levels, timed on a machine as the hops of one ring are.

The two algorithms are those of MPI libraries (Thakur, Rabenseifner and Gropp, International Journal of High Performance
Computing Applications 19, 2005): a binomial tree, and for long messages a scatter followed by a ring all-gather.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ringmpi.planner.network import Network

Ints = NDArray[np.int64]


def round_seconds(network: Network, sources: Ints, targets: Ints, nbytes: Ints) -> float:
    """Until all of some messages between hosts, which start together, have landed."""
    routes = network.routes_of_messages(sources, targets)
    busy = routes.loads(nbytes, len(network.routes.slowness)) * network.seconds_a_byte()
    inside = np.where(routes.lengths == 0, nbytes / network.rates.bandwidth, 0)
    return float((network.latency * np.maximum(routes.lengths, 1) + np.maximum(routes.busiest(busy), inside)).max())


def binomial_rounds(size: int) -> Iterator[tuple[Ints, Ints]]:
    """Who sends to whom in each round, counted from the root: the farthest first."""
    apart = 1 << (size - 1).bit_length() >> 1
    while apart:
        senders = np.arange(0, size - apart, 2 * apart)
        yield senders, senders + apart
        apart //= 2


def binomial_seconds(network: Network, ring: Ints, root: int, nbytes: int) -> float:
    """A broadcast of `nbytes` from position `root` of the hosts `ring`: the whole block in each of log2 P rounds."""
    hosts = np.roll(ring, -root)
    return sum(
        round_seconds(network, hosts[a], hosts[b], np.full(len(a), nbytes)) for a, b in binomial_rounds(len(hosts))
    )


def scattered_seconds(network: Network, ring: Ints, root: int, nbytes: int) -> float:
    """The same as a scatter, in each round half of what is left, and an all-gather around the ring."""
    hosts, size = np.roll(ring, -root), len(ring)
    share, seconds = -(-nbytes // size), 0.0
    for a, b in binomial_rounds(size):
        apart = int(b[0] - a[0])
        seconds += round_seconds(network, hosts[a], hosts[b], share * np.minimum(apart, size - b))
    return seconds + (size - 1) * round_seconds(network, hosts, np.roll(hosts, -1), np.full(size, share))


def two_level_seconds(network: Network, ring: Ints, a_node: int, nbytes: int) -> float:
    """A pass of blocks of `nbytes` around rings inside the nodes, and meanwhile from each rank to the next node.

    Source: double-ring attention (Gu et al. 2024, arXiv:2406.18485). While a node's blocks go around inside it, in
    `a_node` - 1 hops, every rank sends one block to its counterpart, so that all ports of the node are in use. In
    `ring` the ranks of a node follow one another.
    """
    ranks = np.arange(len(ring))
    beside = ranks // a_node * a_node + (ranks + 1) % a_node
    away = (ranks + a_node) % len(ranks)
    sources, targets = np.tile(ring, 2), np.concatenate([ring[beside], ring[away]])
    sizes = np.repeat([(a_node - 1) * nbytes, nbytes], len(ranks))
    return len(ranks) // a_node * round_seconds(network, sources, targets, sizes)
