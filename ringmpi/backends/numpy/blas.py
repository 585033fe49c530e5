"""BLAS held to one thread while kernels run, and given back afterwards, however many Python threads call them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController

_lock = threading.Lock()
_inside = 0
_held = ExitStack()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """The first to enter sets the limit of the process, the last to leave takes it back."""
    global _inside
    with _lock:
        if not _inside:
            _held.enter_context(_blas().limit(limits=1, user_api="blas"))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _held.close()


def blas_cores() -> str:
    """The kind of core whose kernels BLAS has chosen, as it calls it: the last bits of products depend on it."""
    found = (each.get("architecture") or each["internal_api"] for each in _blas().info() if each["user_api"] == "blas")
    return " ".join(sorted(set(found)))


@cache
def _blas() -> ThreadpoolController:
    """The BLAS that NumPy has loaded."""
    return ThreadpoolController()
