"""How many threads a process may use: what the user has set, or its share of the cores that it may run on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache

from ringmpi.process.cgroup import limits

SETTING = "OMP_NUM_THREADS"
SLURM_SETTING = "SLURM_CPUS_PER_TASK"


def own_cores() -> tuple[int, ...]:
    """Numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def threads_for(
    cores: tuple[int, ...],
    neighbours: Sequence[tuple[int, ...]],
    environment: Mapping[str, str],
    quota: float | None = None,
) -> int:
    """Threads of a process with these cores.

    Parameters
    ----------
    cores : tuple of int
        That it may run on.
    neighbours : sequence of tuples of int
        The same of all processes of the job on this node, itself included: those with equal cores share them.
    environment : mapping
        OMP_NUM_THREADS, where it is set, is the user's word. Under Slurm SLURM_CPUS_PER_TASK is what a task has got.
    quota : float or None
        CPU time per second that cgroups leave to all processes of the job on this node (cgroup.py). None: no limit.
    """
    asked = environment.get(SETTING, "").split(",")[0].strip()
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    share = len(cores) // max(1, sum(theirs == cores for theirs in neighbours))
    granted = environment.get(SLURM_SETTING, "")
    if granted.isdigit():
        share = min(len(cores), int(granted))
    if quota is not None:
        share = min(share, int(quota / max(1, len(neighbours))))
    return max(1, share)


def threads_alone() -> int:
    """Threads of a process that has its cores for itself."""
    return threads_for(own_cores(), [own_cores()], os.environ, _quota())


@cache
def _quota() -> float | None:
    """What cgroups leave to this process; read once, since every call of `attention` asks for its threads."""
    return limits().cpus
