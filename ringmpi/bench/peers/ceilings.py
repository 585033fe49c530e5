"""What bounds attention on a CPU: a large matrix product, fused multiply-adds from registers, exp."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ringmpi.backends.native import ceilings
from ringmpi.bench.peers import Array, Prepared, UnsupportedError, nothing
from ringmpi.bench.questions import Question
from ringmpi.errors import BackendError

SIDE = 2048
EXP_ELEMENTS = 1 << 12  # in the nearest cache
EXP_CALLS = 1 << 10


def prepare(contender: str, question: Question | None, *, backward: bool, threads: int) -> Prepared:
    """The question plays no part. exp and exp2 run on one thread."""
    try:
        return {"sgemm": _sgemm, "fma": _fma, "exp": _exp, "exp2": _exp2}[contender](threads)
    except BackendError as error:
        raise UnsupportedError(str(error)) from None


def _sgemm(threads: int) -> Prepared:
    a, b = np.random.default_rng(0).standard_normal((2, SIDE, SIDE), np.float32)
    c = np.empty_like(a)
    return Prepared(lambda: np.matmul(a, b, out=c), nothing, {"numpy": np.__version__}, amount=2.0 * SIDE**3)


def _fma(threads: int) -> Prepared:
    pool = ThreadPoolExecutor(threads)  # the library runs without the interpreter's lock

    def run() -> None:
        list(pool.map(lambda _: ceilings.fused_multiply_adds(), range(threads)))

    return Prepared(run, nothing, {}, amount=threads * ceilings.fused_multiply_adds())


def _exp(threads: int) -> Prepared:
    x, y = _arguments()

    def run() -> None:
        for _ in range(EXP_CALLS):
            np.exp(x, out=y)

    return Prepared(run, nothing, {"numpy": np.__version__}, amount=float(EXP_ELEMENTS * EXP_CALLS))


def _exp2(threads: int) -> Prepared:
    x, y = _arguments()
    ceilings.exp2(x, y, 1)
    return Prepared(lambda: ceilings.exp2(x, y, EXP_CALLS), nothing, {}, amount=float(EXP_ELEMENTS * EXP_CALLS))


def _arguments() -> tuple[Array, Array]:
    """Numbers as the kernels meet them, and room for the result, both aligned to 64 bytes."""
    room = np.empty(2 * EXP_ELEMENTS + 16, np.float32)
    start = -room.ctypes.data % 64 // room.itemsize
    x, y = room[start : start + EXP_ELEMENTS], room[start + EXP_ELEMENTS : start + 2 * EXP_ELEMENTS]
    x[:] = np.random.default_rng(0).uniform(-20, 0, EXP_ELEMENTS)
    return x, y
