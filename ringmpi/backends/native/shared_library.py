"""The shared libraries of the native kernels: which are built, which one this machine runs, what they take (abi.h)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from ringmpi.errors import BackendError

FOLDER = Path(__file__).parent
INSTRUCTION_SETS = ("avx512", "avx2", "portable")  # widest first
SETTING = "RINGMPI_NATIVE"
HOW_TO_GET = "Install a C++ compiler (g++ or clang++) and install ringmpi again; until then NumPy is used."

POLL = ctypes.CFUNCTYPE(ctypes.c_int)


class Array(ctypes.Structure):
    """An array of four axes, strides in bytes."""

    _fields_ = (("data", ctypes.c_void_p), ("stride", ctypes.c_int64 * 4))


class Problem(ctypes.Structure):
    """What forward and backward calls share."""

    _fields_ = (
        *((name, Array) for name in "qkv"),
        ("dtype", ctypes.c_int64),
        *((name, ctypes.c_int64) for name in ("batch", "query_heads", "key_heads")),
        *((name, ctypes.c_int64) for name in ("queries", "keys", "head_dim", "value_dim")),
        ("work", ctypes.c_void_p),
        ("items", ctypes.c_int64),
        ("scale", ctypes.c_double),
        ("softcap", ctypes.c_double),
        ("slopes", ctypes.c_void_p),
        ("dropout_least", ctypes.c_uint64),
        ("seed", ctypes.c_uint64),
        ("dropout_factor", ctypes.c_double),
        ("finite", ctypes.c_int64),
        ("poll", POLL),
        ("attended", ctypes.c_int64),
    )


class Record(ctypes.Structure):
    """The carried record of the rows; without data where they are not recorded."""

    _fields_ = (
        *((name, Array) for name in ("score_sum", "distance_sum", "sink_sum", "top_key")),
        ("sinks", ctypes.c_int64),
    )


class Forward(ctypes.Structure):
    """A forward call."""

    _fields_ = (
        ("problem", Problem),
        *((name, Array) for name in ("row_max", "row_sum", "weighted_sum")),
        ("record", Record),
    )


class Backward(ctypes.Structure):
    """A backward call; gradients that are not asked for have no data."""

    _fields_ = (
        ("problem", Problem),
        *((name, Array) for name in ("grad_output", "log_sum_exp", "delta", "query", "key", "value")),
        ("slope", ctypes.c_void_p),
    )


def built() -> dict[str, Path]:
    """The libraries that the install has built, widest first."""
    paths = {isa: [FOLDER / f"_native_{isa}{suffix}" for suffix in EXTENSION_SUFFIXES] for isa in INSTRUCTION_SETS}
    return {isa: path for isa, candidates in paths.items() for path in candidates[:1] if path.exists()}


def usable() -> tuple[str, ...]:
    """The instruction sets that are built and that this machine runs, widest first.

    Raises
    ------
    BackendError
        If nothing is built, or what is built cannot be loaded.
    """
    libraries = built()
    if "portable" not in libraries:
        raise BackendError(f"the native kernels are not built. {HOW_TO_GET}")
    runs = load(str(libraries["portable"])).ringmpi_runs
    return tuple(isa for isa in libraries if runs(isa.encode()))


def choose(isa: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The instruction set to use.

    Parameters
    ----------
    isa : str or None
        "avx512", "avx2" or "portable"; None: what RINGMPI_NATIVE says, else the widest that this machine runs.
    environment : mapping

    Raises
    ------
    BackendError
        If it is not built, or this machine does not run it.
    """
    known = usable()
    asked = isa or environment.get(SETTING) or known[0]
    if asked not in known:
        raise BackendError(
            f'the native kernels for "{asked}" were requested; available here are {", ".join(known)}. '
            f"Choose one of these, or unset {SETTING} for the widest."
        )
    return asked


def library(isa: str) -> ctypes.CDLL:
    """The library for a usable instruction set."""
    return load(str(built()[isa]))


@cache
def load(path: str) -> ctypes.CDLL:
    """A shared library with its functions declared; BackendError where it cannot be loaded."""
    try:
        found = ctypes.CDLL(path)
        found.ringmpi_open.argtypes, found.ringmpi_open.restype = [ctypes.c_int], ctypes.c_void_p
        found.ringmpi_close.argtypes, found.ringmpi_close.restype = [ctypes.c_void_p], None
        found.ringmpi_runs.argtypes = [ctypes.c_char_p]
        found.ringmpi_attend.argtypes = [ctypes.c_void_p, ctypes.POINTER(Forward)]
        found.ringmpi_attend_backward.argtypes = [ctypes.c_void_p, ctypes.POINTER(Backward)]
    except (OSError, AttributeError) as error:
        raise BackendError(f"the native kernels cannot be loaded ({error}). {HOW_TO_GET}") from error
    return found
