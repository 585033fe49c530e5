"""Backends: the same block operation (base.py) on different hardware. `get_backend` is the only way in."""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.util import find_spec

from ringmpi.backends.base import Backend
from ringmpi.errors import BackendError

log = logging.getLogger("ringmpi")
_OPENERS = {  # functions (*, threads, local_rank) -> Backend, by module and name
    "native": ("ringmpi.backends.native.attend", "open_backend"),
    "numpy": ("ringmpi.backends.numpy.attend", "open_backend"),
    "cuda": ("ringmpi.backends.cuda.opening", "open_backend"),
}
MOST_THREADS = 4096
NO_ROWS = (
    'rows are to be recorded, and backend "cuda" does not record them; with rows = false in [record] (record=False in '
    "Python) it is used"
)


def get_backend(
    name: str = "auto",
    *,
    threads: int = 1,
    reproducible: bool = False,
    records: bool = False,
    local_rank: int | None = None,
) -> Backend:
    """A new backend, its module imported only now.

    Parameters
    ----------
    name : str
        "cuda", "native", "numpy", or "auto" (`choose`).
    threads : int
        Cores that it may use.
    reproducible : bool
        Equal bits are asked for, on any number of ranks.
    records : bool
        Rows are to be recorded (core/record.py).
    local_rank : int or None
        Which of the ranks on its node this one is: GPUs are dealt to them in turn. None: alone.

    Raises
    ------
    BackendError
        If there is no backend of that name, it cannot be loaded or finds no GPU, its bits depend on the ranks and must
        not, or it cannot record rows and must; or if there are 0 threads, or more than 4096.
    """
    if not 1 <= threads <= MOST_THREADS:
        raise BackendError(f"{threads} threads were requested; expected 1 to {MOST_THREADS}. Set OMP_NUM_THREADS.")
    if name == "auto":
        name, why = choose(reproducible=reproducible, records=records)
        if name != "cuda" and find_spec("cupy") is not None:  # who has no CuPy expects no GPU
            log.info("no GPU is used: %s", why)
    if name not in _OPENERS:
        known = ", ".join(f'"{known}"' for known in ("auto", *_OPENERS))
        raise BackendError(f'backend "{name}" is unknown; choose one of {known}.')
    module, opener = _OPENERS[name]
    backend: Backend = getattr(import_module(module), opener)(threads=threads, local_rank=local_rank or 0)
    if reproducible and not backend.reproducible:
        raise BackendError(
            f'reproducible was requested, but the bits of backend "{name}" depend on how rows are spread over ranks, '
            f'as its matrix products do. Leave reproducible out, or use a backend whose bits do not: "native".'
        )
    if records and not backend.records:
        raise BackendError(
            f'rows are to be recorded, but backend "{name}" does not record them. Leave them out (rows = false '
            f'in [record], record=False in Python), or use "native" or "numpy".'
        )
    return backend


def choose(*, reproducible: bool = False, records: bool = False) -> tuple[str, str]:
    """What "auto" takes, and why: cuda where there is a GPU that it can use, else native, else numpy."""
    from ringmpi.backends.cuda.opening import why_not

    missing = why_not() or (NO_ROWS if records else "")
    if not missing:
        return "cuda", "there is a GPU"
    # NumPy could not keep the promise of equal bits, so there native says what it needs.
    if reproducible or _native_can_run():
        return "native", missing
    return "numpy", f"native kernels cannot be loaded; {missing}"


def _native_can_run() -> bool:
    """Whether native kernels are built and load here. What else is wrong with them is for the user to hear."""
    from ringmpi.backends.native.shared_library import usable

    try:
        usable()
    except BackendError:
        return False
    return True
