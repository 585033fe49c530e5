"""What is inside a host: GPUs, network adapters, and how near they are to one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# From near to far: https://docs.nvidia.com/deploy/nvidia-smi, `topo -m`. NV is any number of NVLinks.
NEARNESS = ("X", "NV", "PIX", "PXB", "PHB", "NODE", "SYS")


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU or a network adapter.

    Attributes
    ----------
    name : str
        GPU0, mlx5_0: as the source says.
    kind : str
        "gpu" or "nic".
    numa : int or None
        NUMA node that it hangs on.
    """

    name: str
    kind: Literal["gpu", "nic"]
    numa: int | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """The devices of one host.

    Attributes
    ----------
    devices : tuple of Device
        In the order of the source.
    paths : mapping of (str, str) to str
        Two devices, both ways round, to the worst thing between them: a word of `NEARNESS`.
    nvlinks : mapping of (str, str) to float
        Two GPUs, both ways round, to the NVLinks between them, in `nvlink_unit`. A pair without has no entry. GPUs on
        a common NVSwitch count as linked.
    nvlink_unit : str
        "links" or "MB/s".
    """

    devices: tuple[Device, ...] = ()
    paths: Mapping[tuple[str, str], str] = field(default_factory=dict)
    nvlinks: Mapping[tuple[str, str], float] = field(default_factory=dict)
    nvlink_unit: str = "links"

    def of_kind(self, kind: str) -> tuple[str, ...]:
        """Names of the GPUs ("gpu") or of the network adapters ("nic")."""
        return tuple(device.name for device in self.devices if device.kind == kind)

    def nearest_nics(self, gpu: str) -> tuple[str, ...]:
        """The adapters nearest to `gpu`, in the order of the source; empty where no path is known."""
        ranks = {nic: NEARNESS.index(self.paths[gpu, nic]) for nic in self.of_kind("nic") if (gpu, nic) in self.paths}
        return tuple(nic for nic, rank in ranks.items() if rank == min(ranks.values()))
