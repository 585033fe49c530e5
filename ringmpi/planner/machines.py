"""Machines by name: what one device computes and what one hop moves, from data sheets.

These are peaks. Kernels reach a part of them, often a half, and so do messages: --flops, --bandwidth or --measure say
what you have.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """How fast one rank computes and how fast it receives while it sends as much.

    flops : float
        Floating-point operations per second.
    bandwidth : float
        Bytes per second, in one direction.
    source : str
        Where the figures are from.
    """

    flops: float
    bandwidth: float
    source: str


A100 = "NVIDIA A100 data sheet (2021): 312 TFLOP/s bfloat16, dense"
H100 = "NVIDIA H100 data sheet (2023): 1,979 TFLOP/s bfloat16 with sparsity, so 989 dense"

MACHINES = {
    "a100-nvlink": Rates(312e12, 300e9, f"{A100}; NVLink 600 GB/s, half of it each way"),
    "a100-hdr": Rates(312e12, 25e9, f"{A100}; InfiniBand HDR, 200 Gbit/s"),
    "a100-edr": Rates(312e12, 12.5e9, f"{A100}; InfiniBand EDR, 100 Gbit/s"),
    "h100-nvlink": Rates(989e12, 450e9, f"{H100}; NVLink 900 GB/s, half of it each way"),
    "h100-ndr": Rates(989e12, 50e9, f"{H100}; InfiniBand NDR, 400 Gbit/s"),
    "mi300x-fabric": Rates(
        1307e12,
        64e9,
        "AMD MI300X data sheet (2023): 1,307 TFLOP/s bfloat16, dense; one Infinity Fabric link, 128 GB/s both ways",
    ),
}
