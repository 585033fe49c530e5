"""Backends: the same block operation (base.py) on different hardware. `get_backend` is the only way in."""

from __future__ import annotations

from importlib import import_module

from ringmpi.backends.base import Backend
from ringmpi.errors import BackendError

_CLASSES = {"numpy": ("ringmpi.backends.numpy.attend", "NumpyBackend")}
_ABSENT = ("native", "cuda")


def get_backend(name: str = "auto", *, threads: int = 1) -> Backend:
    """A new backend, its module imported only now.

    Parameters
    ----------
    name : str
        "auto" (the fastest that this version has: numpy) or "numpy".
    threads : int
        Cores that it may use.

    Raises
    ------
    BackendError
        If this version has no backend of that name.
    """
    chosen = "numpy" if name == "auto" else name
    if chosen in _ABSENT:
        raise BackendError(
            f'backend "{chosen}" is asked for, but this version of ringmpi has only "numpy". '
            f'Use backend = "numpy" or "auto", or a version with "{chosen}".'
        )
    if chosen not in _CLASSES:
        known = ", ".join(f'"{known}"' for known in ("auto", *_CLASSES))
        raise BackendError(f'backend "{name}" is not known; known are {known}. Choose one of these.')
    module, class_name = _CLASSES[chosen]
    backend: Backend = getattr(import_module(module), class_name)(threads=threads)
    return backend
