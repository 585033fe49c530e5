"""Kernels by their PTX, behind the host code of the backend."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from ringmpi.backends.cuda.compiler import compile_kernel
from tests.cuda.ptx.grid import Grid

ARCHITECTURE = "sm_80"


@dataclass(frozen=True)
class Replacement:
    """A fault in the assembly: where `pattern` matches, all over the PTX, `by` stands."""

    pattern: str
    by: str


@cache
def ptx_of(kernel: Any) -> str:
    """What NVRTC makes of a kernel."""
    return compile_kernel(kernel, ARCHITECTURE, "ptx")[0].decode()


class PtxRunner:
    """Runs kernels for an EagerDevice; with a fault in them, if one is given.

    A kernel in which the pattern of the fault is not found runs as it is; `replaced` counts what was replaced.
    """

    def __init__(self, fault: Replacement | None = None) -> None:
        self._fault, self.replaced = fault, 0

    def __call__(self, kernel: Any, size: tuple[int, int], argument: Any, bounds: Any) -> None:
        """One launch."""
        text = ptx_of(kernel)
        if self._fault is not None:
            text, count = re.subn(self._fault.pattern, self._fault.by, text)
            self.replaced += count
        Grid(text, size, argument, kernel.shared_bytes, bounds).run()
