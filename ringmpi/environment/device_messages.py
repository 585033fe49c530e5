"""How messages between GPUs go: straight from their memory, or through that of the host. Never by trust alone.

A library that says it is CUDA-aware is tried by two ranks of a job of its own, which may crash as a library that is
given addresses it does not know does; nothing happens to this one.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from ringmpi.comm.agreement import AgreeingRing, from_first
from ringmpi.comm.protocol import Communicator, Message, Tag
from ringmpi.environment import libraries
from ringmpi.environment.site import start_ranks
from ringmpi.errors import RingError

log = logging.getLogger("ringmpi")
SETTING = "RINGMPI_DEVICE_MESSAGES"  # "direct" or "staged": not asked and not tried
MODES = {"direct": True, "staged": False}
SIZES = (1, 4_097, 8 << 20)  # bytes: what libraries send at once, and what only when the receiver asks for it
PROVED = "all bytes arrived"
ONE_GPU = "two ranks on one GPU"  # shows nothing of messages between two
MODULE = __name__  # what two ranks run, to try it


class DeviceTransport(AgreeingRing, Protocol):
    """A transport over MPI (comm/mpi.py)."""

    takes_device_memory: bool
    nodes: list[str]
    devices: list[str] | None


def settle_devices(ring: DeviceTransport, device: Any) -> None:
    """Find out, once per ring, how its messages go, and whether ranks share a GPU; rank 0 says so. Collective.

    Parameters
    ----------
    ring : MPIRing
        Its `takes_device_memory` is set.
    device : Device
        The GPU of this rank.

    Raises
    ------
    RingError
        If the setting says neither "direct" nor "staged".
    """
    if ring.devices is not None:
        return
    told = ring.exchange((device.uuid, device.name), "looking at GPUs")
    devices = [uuid for uuid, _ in told]
    several = len({*zip(ring.nodes, devices, strict=True)}) > 1
    how = from_first(ring, "trying messages between GPUs", lambda: _how(os.environ, several=several))
    (ring.takes_device_memory, why), ring.devices = how, devices
    if ring.rank:
        return
    names = ", ".join(f"{count} x {name}" for name, count in Counter(name for _, name in told).items())
    way = "straight from GPU memory" if ring.takes_device_memory else "through host memory"
    log.info("GPUs: %s; messages go %s: %s", names, way, why)
    for sentence in shared(ring.nodes, devices):
        log.warning("%s", sentence)


def shared(nodes: list[str], devices: list[str]) -> list[str]:
    """A sentence for each GPU that several ranks compute on."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank, place in enumerate(zip(nodes, devices, strict=True)):
        ranks.setdefault(place, []).append(rank)
    return [
        f"ranks {', '.join(map(str, those))} share {device} on node {node}: each gets only a part of its memory and "
        f"time. Start one rank per GPU (Slurm: --gpus-per-task=1, or as many --ntasks-per-node as GPUs)"
        for (node, device), those in ranks.items()
        if len(those) > 1
    ]


def _how(environment: Mapping[str, str], *, several: bool) -> tuple[bool, str]:
    """Whether MPI takes GPU memory, and how that is known. `several`: the ring has more than one GPU."""
    from ringmpi.comm.cuda_support import says_cuda_aware

    if asked := environment.get(SETTING):
        if asked not in MODES:
            raise RingError(f'{SETTING} = "{asked}"; expected "direct" or "staged". Unset it to have MPI tested.')
        return MODES[asked], f"{SETTING} says so"
    if not says_cuda_aware():
        return False, "the MPI library does not say that it is CUDA-aware"
    return tried(environment, several=several)


def tried(environment: Mapping[str, str], *, several: bool) -> tuple[bool, str]:
    """Whether two ranks of another job can send GPU memory to each other, and what happened.

    Parameters
    ----------
    environment : mapping
        Of this process: where it hides GPUs, two ranks may come to one.
    several : bool
        It is to be shown between two GPUs.
    """
    launcher = libraries.launcher()
    if not launcher:
        return False, f"there is no launcher to try it with; {SETTING}=direct skips that"
    answer = start_ranks(launcher, environment, module=MODULE)
    _, proved, rest = answer.text.partition(PROVED)
    where = rest.partition("\n")[0].strip(": ")
    if answer.failure or not proved:
        what = answer.failure or "bytes were lost"
    elif several and where.startswith(ONE_GPU):
        what = f"they were {where}"
    else:
        return True, f"MPI is CUDA-aware, as shown by {where}"
    return (
        False,
        f"MPI says that it is CUDA-aware, but two ranks could not confirm it ({what}); {SETTING}=direct skips that",
    )


def prove(ring: Communicator, memory: Any) -> bool:
    """Send GPU memory to the other one of two ranks and back; whether all bytes are there."""
    peer, fine = 1 - ring.rank, True
    for size in SIZES:
        numbers = (np.arange(size) * 31 + ring.rank).astype(np.uint8)
        mine, theirs = memory.put(numbers), memory.put(np.zeros_like(numbers))
        sends, receives = ([Message(peer, Tag.LINKS, memory.ferry.as_bytes(array))] for array in (mine, theirs))
        flight = ring.start(sends, receives)
        while not flight.landed():
            pass
        expected = (np.arange(size) * 31 + peer).astype(np.uint8)
        fine = fine and bool((memory.get(theirs) == expected).all())
    return fine


def on_what(places: list[tuple[str, str]]) -> str:
    """How near to each other the two ranks are that have tried it: (node, UUID of the GPU) of each."""
    (node, uuid), (other_node, other_uuid) = places
    if places[0] == places[1]:
        return f"{ONE_GPU}, {uuid} of {node}"
    if node == other_node:
        return f"two ranks on one node, {uuid} and {other_uuid} of {node}"
    return f"two ranks on two nodes, {uuid} of {node} and {other_uuid} of {other_node}"


def main() -> None:
    """Two ranks try it; rank 0 writes what they have found, and where."""
    from ringmpi.backends import get_backend
    from ringmpi.comm.mpi import MPIRing
    from ringmpi.comm.world import world

    comm = world()
    ring = MPIRing(comm, comm.rank, timeout=20)
    memory = get_backend("cuda", local_rank=ring.local_rank).memory
    fine, places = zip(*ring.exchange((prove(ring, memory), (ring.node, memory.device.uuid))), strict=True)
    if all(fine) and ring.rank == 0:
        sys.stdout.write(f"{PROVED}: {on_what(list(places))}\n")


if __name__ == "__main__":
    main()
