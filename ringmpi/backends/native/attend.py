"""The native backend: fused kernels in C++, one row of queries a vector lane (forward.cpp, backward.cpp)."""

from __future__ import annotations

import ctypes
import weakref
from typing import ClassVar

import numpy as np

from ringmpi.backends.base import CALL_SECONDS, Poll
from ringmpi.backends.memory import HOST, Memory
from ringmpi.backends.native.backward import add_gradients
from ringmpi.backends.native.call import Call
from ringmpi.backends.native.shared_library import Forward, choose, library
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.gradients import Gradients, Saved
from ringmpi.core.partial import Array, Partial, carried_partial
from ringmpi.core.scoring import Scoring
from ringmpi.core.shapes import HeadShape, head_shape
from ringmpi.core.work import Work
from ringmpi.errors import BackendError

FLOPS_PER_SECOND = {4: 60e9, 8: 30e9}  # of one core with AVX2, by bytes of a number in sums


def open_backend(*, threads: int, local_rank: int) -> NativeBackend:
    """The backend on so many cores; which of the ranks on its node this one is has no meaning here."""
    return NativeBackend(threads=threads)


class NativeBackend:
    """Block attention on CPU cores by the kernels of this package; backends/base.py has the contract.

    **Which bits depend on what.** Keys are cut into tiles of 128 at local indices 0, 128, 256, ... of the arrays k
    and v. A row meets its keys in blocks of tiles (at most 4096 keys, fewer for wide heads: a function of head_dim,
    value_dim and dtype), within a block item by item in the order of the table, and for an item tile by tile. What a
    row's Partial is after a tile depends on that row of q, on its Partial before, on the keys and values of the tile,
    and on which of them the row sees: not on the place of the row among others, on how rows are cut into calls, on
    the other heads, or on the number of threads. Keys that a row does not see add exactly 0. So calls that are cut by
    rows give the same bits, and calls cut by keys do where each cut is at a multiple of a block.

    Parameters
    ----------
    threads : int
        Cores to use. Threads start with the first call that needs them and sleep between calls.
    isa : str or None
        "avx512", "avx2" or "portable"; None: the widest that this machine runs, or what RINGMPI_NATIVE says. Other
        instruction sets give other last bits.

    Raises
    ------
    BackendError
        If the libraries are not built, or this machine does not run the one asked for.
    """

    name: ClassVar[str] = "native"
    memory: ClassVar[Memory] = HOST
    reproducible: ClassVar[bool] = True
    records: ClassVar[bool] = True

    def __init__(self, *, threads: int = 1, isa: str | None = None) -> None:
        self.isa = self.arithmetic = choose(isa)
        self.threads = threads
        self._library = library(self.isa)
        self._engine = self._library.ringmpi_open(threads)
        if not self._engine:
            raise BackendError("not enough memory for the native kernels. Use fewer threads (OMP_NUM_THREADS).")
        weakref.finalize(self, self._library.ringmpi_close, self._engine)

    def call_budget(self, heads: HeadShape, dtype: np.dtype) -> int:
        """Rows x keys that take about 0.3 s over all heads, on all threads."""
        flops = 2 * heads.query_slabs * (heads.head_dim + heads.value_dim)
        return max(int(CALL_SECONDS * self.threads * FLOPS_PER_SECOND[accumulate_dtype(dtype).itemsize] / flops), 1)

    def attend(
        self,
        q: Array,
        k: Array,
        v: Array,
        work: Work,
        scoring: Scoring,
        *,
        finite: bool = True,
        into: Partial | None = None,
        poll: Poll | None = None,
    ) -> tuple[Partial, int]:
        """Attend queries to the keys that `work` names: see `ringmpi.backends.base.Backend.attend`."""
        carried = carried_partial(into, head_shape(q.shape, k.shape, v.shape), q.shape[2], q.dtype)
        call = Call(q, k, v, work, scoring, finite=finite, poll=poll)
        arrays = carried.row_max[..., None], carried.row_sum[..., None], carried.weighted_sum
        forward = Forward(call.problem, *(call.array(array) for array in arrays), call.record(carried.record))
        call.run(lambda: self._library.ringmpi_attend(self._engine, ctypes.byref(forward)))
        return carried, forward.problem.attended

    def attend_backward(
        self,
        q: Array,
        k: Array,
        v: Array,
        saved: Saved,
        work: Work,
        scoring: Scoring,
        *,
        into: Gradients,
        finite: bool = True,
        poll: Poll | None = None,
    ) -> int:
        """Add the gradients of what `work` names: see `ringmpi.backends.base.Backend.attend_backward`."""
        call = Call(q, k, v, work, scoring, finite=finite, poll=poll)
        return add_gradients(call, q, saved, into, self._library, self._engine)
