"""A ring order in the forms that launchers read, so that ranks start where the ring wants them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby


def openmpi_rankfile(hosts: Sequence[str], order: Sequence[int], cores: int) -> str:
    """For `mpirun --map-by rankfile:file=FILE` (Open MPI 5) and `mpirun --rankfile FILE` (4).

    Parameters
    ----------
    hosts : sequence of str
        Host of each launch rank.
    order : sequence of int
        Position in the ring to launch rank.
    cores : int
        Cores of each rank; the first rank of a host gets the first ones.
    """
    used: Counter[str] = Counter()
    lines = []
    for position, rank in enumerate(order):
        first = used[hosts[rank]]
        used[hosts[rank]] += cores
        slots = str(first) if cores == 1 else f"{first}-{first + cores - 1}"
        lines.append(f"rank {position}={hosts[rank]} slot={slots}\n")
    return "".join(lines)


def slurm_hostfile(hosts: Sequence[str], order: Sequence[int]) -> str:
    """For `SLURM_HOSTFILE=FILE srun --distribution=arbitrary`: the host of each task on a line."""
    return "".join(f"{hosts[rank]}\n" for rank in order)


def mpich_rank_order(order: Sequence[int]) -> str:
    """For `MPICH_RANK_REORDER_METHOD=3` of Cray MPICH, as the file MPICH_RANK_ORDER: the rank that each slot gets.

    Slots are those of the launch without it.
    """
    position = {rank: place for place, rank in enumerate(order)}
    return ",".join(str(position[slot]) for slot in range(len(order))) + "\n"


def hostfile(hosts: Sequence[str], order: Sequence[int]) -> str:
    """For `mpiexec -f FILE` (MPICH and its kin): hosts in ring order, each with its number of ranks.

    Open MPI takes no order from a hostfile: give it a rankfile.
    """
    runs = groupby(hosts[rank] for rank in order)
    return "".join(f"{host}:{len(list(ranks))}\n" for host, ranks in runs)
