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


def get_backend(name: str = "auto", *, threads: int = 1) -> Backend:
    """A new backend, its module imported only now.

    Parameters
    ----------
    name : str
        "native", "numpy", or "auto": native, and numpy where the native kernels are not built.
    threads : int
        Cores that it may use.

    Raises
    ------
    BackendError
        If this version has no backend of that name, or it cannot be loaded.
    """
    if name == "auto":
        try:
            return get_backend("native", threads=threads)
        except BackendError:
            return get_backend("numpy", threads=threads)
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
    return backend
