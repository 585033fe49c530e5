"""The native kernels that this machine runs, one backend for each instruction set and number of threads."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import strategies as st

from ringmpi.backends.native.attend import NativeBackend
from ringmpi.backends.native.shared_library import usable
from ringmpi.errors import BackendError


def instruction_sets() -> tuple[str, ...]:
    """None where the install found no compiler."""
    try:
        return usable()
    except BackendError:
        return ()


ISAS = instruction_sets()
needs_native = pytest.mark.skipif(not ISAS, reason="the native kernels are not built here: no C++ compiler at install")
BACKENDS = ("numpy", "native") if ISAS else ("numpy",)  # of a CPU, that are here


@cache
def native(isa: str, threads: int = 1) -> NativeBackend:
    """One backend for all tests: its buffers and threads serve many calls, as in a run."""
    return NativeBackend(isa=isa, threads=threads)


natives = st.builds(native, st.sampled_from(ISAS), st.integers(1, 3)) if ISAS else st.nothing()
