"""What a benchmark was measured on: figures without it say nothing."""

from __future__ import annotations

import os
from typing import Any

from ringmpi.environment.child import alone
from ringmpi.environment.report import environment_report

SECTIONS = (
    "ringmpi",
    "system",
    "cores",
    "memory",
    "packages",
    "NumPy",
    "native kernels",
    "GPU",
    "MPI",
    "variables",
    "Slurm",
)
PINS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # pin OpenBLAS to an older kernel: children are started without


def machine() -> dict[str, Any]:
    """Processor, cores, libraries and how busy it is, as `ringmpi info` tells them. JSON-able."""
    report = environment_report()
    report["MPI"].pop("file", None)  # a path says nothing about speed
    pinned = {name: os.environ[name] for name in PINS if name in os.environ}
    return {name: report[name] for name in SECTIONS} | {
        "load average": [round(load, 2) for load in os.getloadavg()],
        "variables not passed on": pinned,
    }


def unpinned() -> dict[str, str]:
    """The environment of a process that is started from here, and is no rank of this job."""
    return {name: value for name, value in alone(os.environ).items() if name not in PINS}
