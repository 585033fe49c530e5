"""Where a ring over all GPUs enters and leaves each host.

On a network built of rails, adapter i of every host hangs on leaf switch i. A block stays on one rail if the GPU that
leaves a host and the GPU that enters the next are on the same one. So hosts are gone through in turn from the first
rail to the last and from the last to the first: out of the last of one, into the last of the next, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence


def along_rails(ranks: Sequence[Sequence[int]]) -> list[int]:
    """The ranks of a ring over hosts, every other host the other way round.

    Between hosts the ring then stays on one rail. With an odd number of hosts one edge, the one that closes the ring,
    changes it. A host with one rank has one rail and does not count.

    Parameters
    ----------
    ranks : sequence of sequences of int
        For each host in ring order its ranks, by rail.
    """
    order: list[int] = []
    backwards = False
    for of_host in ranks:
        order += reversed(of_host) if backwards else of_host
        backwards ^= len(of_host) > 1
    return order
