"""What a way between two hosts is made of: cables, each counted in either direction."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ringmpi.topology.graph import Graph, Link

Distances = NDArray[np.int16]
Hosts = NDArray[np.int64]


class Routes(Protocol):
    """The ways between the hosts of a job, which are numbered in natural order of their names.

    Attributes
    ----------
    hosts : tuple of str
        Number to name.
    groups : list of tuples of int
        Hosts that differ in nothing but their name: at one place of a grid, or on the same switches.
    slowness : list of float
        Number of a cable, in one direction, to how much slower it is than the fastest cable of the machine.
    ends : list of (str, str)
        The same to the vertices that it leads from and to.
    """

    hosts: tuple[str, ...]

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """Hosts that differ in nothing but their name."""

    @property
    def slowness(self) -> list[float]:
        """How much slower each cable is than the fastest."""

    @property
    def ends(self) -> list[tuple[str, str]]:
        """Number of a cable, in one direction, to the vertices that it leads from and to."""

    def links(self, a: int, b: int) -> tuple[int, ...]:
        """The cables that a block passes from host `a` to host `b`, in order; none within a host."""

    def distances(self, a: Hosts, b: Hosts) -> Distances:
        """Links between the hosts `a` and the hosts `b`, [a, b]; 0 from a host to itself."""


class Cables:
    """Cables, numbered as they are met, one number for each direction.

    Of the parallel cables of a link, all as fast as their mean, a destination always uses the same one.
    """

    def __init__(self, graph: Graph) -> None:
        rates = [link.capacity / link.cables for link in graph.links] or [1.0]
        self._fastest, self._slowest = max(rates), min(rates)
        self._numbers: dict[tuple[str, str, int], int] = {}
        self.slowness: list[float] = []
        self.ends: list[tuple[str, str]] = []  # the vertices that a cable leads from and to, by its number

    def number(self, start: str, end: str, link: Link, turn: int = 0) -> int:
        """The cable from vertex `start` to vertex `end` that the destination whose turn is `turn` uses."""
        return self._number((start, end, turn % link.cables), link.capacity / link.cables)

    def unknown(self, start: str, end: str, length: int) -> tuple[int, ...]:
        """A way that no file tells: `length` cables of its own, as slow as the slowest known one."""
        return tuple(self._number((start, end, -1 - step), self._slowest) for step in range(length))

    def _number(self, key: tuple[str, str, int], rate: float) -> int:
        known = self._numbers.setdefault(key, len(self.slowness))
        if known == len(self.slowness):
            self.slowness.append(self._fastest / rate)
            self.ends.append(key[:2])
        return known
