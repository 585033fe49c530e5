"""How fast the hosts of a job reach one another: every pair timed, disjoint pairs at the same time.

A pair that is alone on a network shows the slowest cable between its hosts, and nothing of what many pairs would share.
A ring loads the network with one transfer a host at once, so it is timed like that: in each round every host has one
partner, and the hosts meet in another order in each tournament. Pairs behind one switch then keep their rate in every
round, and pairs that share cables with others do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ringmpi.comm.agreement import Exchanges
from ringmpi.comm.protocol import Communicator, Flight, Message, Tag

STEP = "timing links"
TOURNAMENTS = 3
PINGS = 8
FIRST_BYTES = 1 << 20  # also the least: switches and shapers let a small burst pass at any rate
MOST_BYTES = 1 << 25
ROUND_SECONDS = 0.02  # what a transfer should take, so that starting together is not what is timed
SEED = 1


class TimedRing(Communicator, Exchanges, Protocol):
    """A ring that can be timed: it moves messages, drives a loop, and its ranks can agree."""

    def drive(self, loop: Iterator[Flight], during: Callable[[], str] = ...) -> None:
        """Run a loop to its end, waiting for each flight."""
        ...

    def collect(self, item: Any, during: str) -> list[Any]:
        """Every rank's item, in ring order, on rank 0; an empty list elsewhere."""
        ...


@dataclass(frozen=True, eq=False)
class LinkTimes:
    """Between hosts, by number; 0 on the diagonal.

    Attributes
    ----------
    rates : float64 [hosts, hosts], bytes/s in each direction
        While all hosts have a partner; median over tournaments.
    latencies : float64 [hosts, hosts], seconds
        Of a message of one byte, one way, the least that was met.
    """

    rates: NDArray[np.float64]
    latencies: NDArray[np.float64]


def tournament(hosts: int, seed: int) -> Iterator[list[tuple[int, int]]]:
    """Rounds of disjoint pairs in which each pair meets once: `hosts` - 1 of them, one more if `hosts` is odd.

    The circle method: one stays, the others move on by a seat; `seed` decides who sits where at first.
    """
    seats: list[int | None] = [*range(hosts), *[None] * (hosts % 2)]
    Random(seed).shuffle(seats)
    for _ in range(len(seats) - 1):
        facing = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        yield [(a, b) for a, b in facing if a is not None and b is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]


def time_links(
    ring: TimedRing, ranks: Sequence[int], *, clock: Callable[[], float] = time.perf_counter
) -> LinkTimes | None:
    """Time all pairs of `ranks`, ring positions, one of each host. Collective: the others wait.

    Takes about 0.1 s a host. Rank 0 gets to know the times; elsewhere it is None.
    """
    timer = _Timer(ring, ranks, clock)
    seconds = ring.exchange(timer.tried(FIRST_BYTES), STEP)
    usual = float(np.median([each for each in seconds if each]))
    nbytes = int(min(max(FIRST_BYTES, FIRST_BYTES * ROUND_SECONDS / usual), MOST_BYTES))
    everyone = ring.collect(timer.all_rounds(nbytes), STEP)
    return _times_of(np.array([everyone[rank] for rank in ranks]), nbytes) if everyone else None


def _times_of(found: NDArray[np.float64], nbytes: int) -> LinkTimes:
    """From seconds [hosts, 2, tournaments, hosts], as `all_rounds` gives them on each host."""
    found = np.maximum(found, found.transpose(3, 1, 2, 0))  # a pair has ended when both ends have
    taken, latencies = np.median(found[:, 0], axis=1), found[:, 1].min(axis=1)
    off = ~np.eye(len(found), dtype=bool)
    return LinkTimes(np.divide(nbytes, taken, out=np.zeros_like(taken), where=off), latencies * off)


class _Timer:
    """What one rank does in the rounds; nothing where it does not stand for its host."""

    def __init__(self, ring: TimedRing, ranks: Sequence[int], clock: Callable[[], float]) -> None:
        self._ring, self._ranks, self._clock = ring, ranks, clock
        self._mine = ranks.index(ring.rank) if ring.rank in ranks else None

    def tried(self, nbytes: int) -> float | None:
        """Seconds of a transfer in the first round."""
        seconds = self._rounds([next(tournament(len(self._ranks), SEED))], nbytes)
        return None if seconds is None or not seconds.any() else float(seconds[0].max())

    def all_rounds(self, nbytes: int) -> NDArray[np.float64] | None:
        """Seconds of transfers and of messages of one byte, [2, tournaments, hosts]."""
        found = [self._rounds(tournament(len(self._ranks), SEED + n), nbytes) for n in range(TOURNAMENTS)]
        return None if self._mine is None else np.stack([each for each in found if each is not None], axis=1)

    def _rounds(self, rounds: Iterable[list[tuple[int, int]]], nbytes: int) -> NDArray[np.float64] | None:
        if self._mine is None:
            return None
        seconds = np.zeros((2, len(self._ranks)))
        outgoing, incoming = np.zeros(nbytes, np.uint8), np.empty(nbytes, np.uint8)
        for pairs in rounds:
            for a, b in pairs:
                if self._mine in (a, b):
                    partner = b if self._mine == a else a
                    loop = self._meet(partner, outgoing, incoming, seconds)
                    self._ring.drive(loop, lambda: STEP)
        return seconds

    def _meet(
        self, partner: int, outgoing: NDArray[np.uint8], incoming: NDArray[np.uint8], seconds: NDArray[np.float64]
    ) -> Iterator[Flight]:
        """Small messages to and fro, which also let both start at once, then a large one each way."""
        peer, least = self._ranks[partner], float("inf")
        for _ in range(PINGS):
            start = self._clock()
            yield self._both_ways(peer, outgoing[:1], incoming[:1])
            least = min(least, self._clock() - start)
        start = self._clock()
        yield self._both_ways(peer, outgoing, incoming)
        seconds[:, partner] = self._clock() - start, least

    def _both_ways(self, peer: int, outgoing: NDArray[np.uint8], incoming: NDArray[np.uint8]) -> Flight:
        return self._ring.start([Message(peer, Tag.LINKS, outgoing)], [Message(peer, Tag.LINKS, incoming)])
