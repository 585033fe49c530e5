"""How many threads a process may use: what the user has set, or its share of the cores that it may run on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

SETTING = "OMP_NUM_THREADS"


def own_cores() -> tuple[int, ...]:
    """Numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def threads_for(cores: tuple[int, ...], neighbours: Sequence[tuple[int, ...]], environment: Mapping[str, str]) -> int:
    """Threads of a process with these cores.

    Parameters
    ----------
    cores : tuple of int
        That it may run on.
    neighbours : sequence of tuples of int
        The same of all processes of the job on this node, itself included: those with equal cores share them.
    environment : mapping
        OMP_NUM_THREADS, where it is set, is the user's word.
    """
    asked = environment.get(SETTING, "").split(",")[0].strip()
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return max(1, len(cores) // max(1, sum(theirs == cores for theirs in neighbours)))


def threads_alone() -> int:
    """Threads of a process that has its cores for itself."""
    return threads_for(own_cores(), [own_cores()], os.environ)
