"""Backends: the same block operation (base.py) on different hardware. `get_backend` is the only way in."""

from __future__ import annotations

from importlib import import_module

from ringmpi.backends.base import Backend
from ringmpi.errors import BackendError

_CLASSES = {
    "native": ("ringmpi.backends.native.attend", "NativeBackend"),
    "numpy": ("ringmpi.backends.numpy.attend", "NumpyBackend"),
}
_ABSENT = ("cuda",)
MOST_THREADS = 4096


def get_backend(name: str = "auto", *, threads: int = 1, reproducible: bool = False, records: bool = False) -> Backend:
    """A new backend, its module imported only now.

    Parameters
    ----------
    name : str
        "native", "numpy", or "auto": native, and numpy where the native kernels are not built or cannot be
        loaded.
    threads : int
        Cores that it may use.
    reproducible : bool
        Equal bits are asked for, on any number of ranks.
    records : bool
        Rows are to be recorded (core/record.py).

    Raises
    ------
    BackendError
        If this version has no backend of that name, it cannot be loaded, its bits depend on the ranks and must not, or
        it cannot record rows and must; or if there are 0 threads, or more than 4096.
    """
    if not 1 <= threads <= MOST_THREADS:
        raise BackendError(f"{threads} threads are asked for; there must be 1 to {MOST_THREADS}. Set OMP_NUM_THREADS.")
    if name == "auto":
        # NumPy could not keep the promise of equal bits, so there native says what it needs.
        name = "native" if reproducible or _native_can_run() else "numpy"
    if name in _ABSENT:
        raise BackendError(
            f'backend "{name}" is asked for, but this version of ringmpi has only "native" and "numpy". '
            f'Use one of these or "auto", or a version with "{name}".'
        )
    if name not in _CLASSES:
        known = ", ".join(f'"{known}"' for known in ("auto", *_CLASSES))
        raise BackendError(f'backend "{name}" is not known; known are {known}. Choose one of these.')
    module, class_name = _CLASSES[name]
    backend: Backend = getattr(import_module(module), class_name)(threads=threads)
    if reproducible and not backend.reproducible:
        raise BackendError(
            f'reproducible is asked for, but the bits of backend "{name}" depend on how rows are spread over ranks: '
            f'its matrix products do. Leave reproducible out, or use a backend whose bits do not: "native".'
        )
    if records and not backend.records:
        raise BackendError(
            f'rows are to be recorded, but backend "{name}" does not record them. Leave the record out, or use '
            f'"native" or "numpy".'
        )
    return backend


def _native_can_run() -> bool:
    """Whether native kernels are built and load here. What else is wrong with them is for the user to hear."""
    from ringmpi.backends.native.shared_library import usable

    try:
        usable()
    except BackendError:
        return False
    return True
