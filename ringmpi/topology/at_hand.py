"""What a job knows of its network without a file: what Slurm tells each task, and names of hosts that are places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ringmpi.errors import TopologyError
from ringmpi.topology.graph import Graph
from ringmpi.topology.readers import slurm_address, xnames

ADDRESS, PATTERN = "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN"


class Whereabouts(NamedTuple):
    """What one rank knows of where it is; `address` and `pattern` are empty where Slurm tells none."""

    host: str
    address: str
    pattern: str

    @classmethod
    def here(cls, host: str, environment: Mapping[str, str]) -> Whereabouts:
        """Of this rank, on `host`."""
        return cls(host, environment.get(ADDRESS, ""), environment.get(PATTERN, ""))


@dataclass(frozen=True)
class Network:
    """A machine, and what it calls the host of each rank.

    Attributes
    ----------
    source : str
        Where it is known from, for people.
    graph : Graph
    hosts : tuple of str
        In launch order.
    """

    source: str
    graph: Graph
    hosts: tuple[str, ...]


def network_at_hand(ranks: Sequence[Whereabouts]) -> tuple[Network | None, tuple[str, ...]]:
    """The network that the ranks of a job, in launch order, can tell, and what they tell that is of no use.

    `scontrol` is not asked: a process may not fork once MPI has started, and a job of many ranks should not call a
    site's controller. A job script can: its output is a file as any other.
    """
    hosts = tuple(rank.host for rank in ranks)
    network, remark = _of_slurm(ranks)
    if network is None and (graph := xnames.from_names(dict.fromkeys(hosts))):
        network = Network("names of hosts", graph, hosts)
    return network, (remark,) if remark else ()


def _of_slurm(ranks: Sequence[Whereabouts]) -> tuple[Network | None, str]:
    """What encloses the node of each task, or why the addresses are of no use."""
    if not all(rank.address and rank.pattern for rank in ranks):
        return None, ""
    if not _own(ranks):
        return None, (
            f"{ADDRESS} is that of another node on some ranks: the launcher passed on its own environment. Start "
            f"with srun, or name a file as placement: scontrol show topology > topology.txt, before the launcher"
        )
    try:
        addresses = [slurm_address.parse(rank.address, rank.pattern, f"{ADDRESS} on {rank.host}") for rank in ranks]
        graph = slurm_address.graph_of(addresses)
    except TopologyError as error:
        return None, str(error)
    return (None if graph.kind == "none" else Network(ADDRESS, graph, tuple(each.node for each in addresses))), ""


def _own(ranks: Iterable[Whereabouts]) -> bool:
    """Whether each host has one address, and no two hosts the same: an address is of the node that its task is on."""
    pairs = {(rank.host, rank.address) for rank in ranks}
    return len(pairs) == len({host for host, _ in pairs}) == len({address for _, address in pairs})
