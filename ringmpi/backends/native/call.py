"""From NumPy arrays to one call of a native kernel, and back from it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from ringmpi.backends.base import Poll
from ringmpi.backends.native.shared_library import POLL, Array, Problem, Record
from ringmpi.backends.work_check import check_work
from ringmpi.core.dropout import WORDS
from ringmpi.core.dtypes import SUPPORTED, native
from ringmpi.core.record import RecordSums
from ringmpi.core.scoring import Scoring
from ringmpi.core.shapes import head_shape
from ringmpi.core.work import Work
from ringmpi.errors import BackendError

STOPPED, OUT_OF_MEMORY = 1, 2


class Call:
    """The arguments of one call; keeps alive what the kernel has pointers to.

    Parameters
    ----------
    q, k, v, work, scoring, finite, poll
        As in backends/base.py. Arrays of any strides are taken as they lie; those in the other byte order are copied.

    Raises
    ------
    ShapeError
        If `work` names rows or keys that the arrays do not have.
    """

    def __init__(
        self, q: Any, k: Any, v: Any, work: Work, scoring: Scoring, *, finite: bool, poll: Poll | None
    ) -> None:
        self._alive: list[Any] = []
        self._raised: list[BaseException] = []
        heads = head_shape(q.shape, k.shape, v.shape)
        check_work(work, q.shape[2], k.shape[2])
        table = self._kept(np.ascontiguousarray(work, np.int64))
        slopes = scoring.alibi_slopes
        self.problem = Problem(
            *(self.array(x.astype(native(x.dtype), copy=False)) for x in (q, k, v)),
            dtype=SUPPORTED.index(native(q.dtype)),
            batch=heads.batch,
            query_heads=heads.query_heads,
            key_heads=heads.key_heads,
            queries=q.shape[2],
            keys=k.shape[2],
            head_dim=heads.head_dim,
            value_dim=heads.value_dim,
            work=table.ctypes.data,
            items=len(table),
            scale=scoring.scale,
            softcap=scoring.softcap or 0,
            slopes=None if slopes is None else self._kept(np.ascontiguousarray(slopes, np.float64)).ctypes.data,
            dropout_least=int(scoring.dropout * WORDS),
            seed=scoring.seed,
            dropout_factor=1 / (1 - scoring.dropout),
            finite=finite,
            poll=POLL() if poll is None else self._kept(_callback(poll, self._raised)),
        )

    def array(self, array: Any) -> Array:
        """What the kernel reads or writes where it lies; axes that are missing at the end have length 1."""
        self._alive.append(array)
        return Array(array.ctypes.data, (ctypes.c_int64 * 4)(*array.strides))

    def record(self, sums: RecordSums | None) -> Record:
        """What the kernel records, where rows are recorded."""
        if sums is None:
            return Record()
        arrays = sums.score_sum, sums.distance_sum, sums.sink_sum, sums.top_key
        return Record(*(self.array(array[..., None]) for array in arrays), sums.sinks)

    def run(self, kernel: Callable[[], int]) -> None:
        """Run it; raise what `poll` raised, or BackendError where there was no memory."""
        status = kernel()
        if self._raised:
            raise self._raised.pop()
        if status == STOPPED:  # by a signal that came while the first was being told
            raise KeyboardInterrupt
        if status == OUT_OF_MEMORY:
            raise BackendError(
                "the native kernel could not get memory or a thread. Use fewer threads (OMP_NUM_THREADS) or more ranks."
            )

    def _kept(self, thing: Any) -> Any:
        self._alive.append(thing)
        return thing


def _callback(poll: Poll, raised: list[BaseException]) -> Any:
    """What the kernel calls: `poll`, and 0; or 1, which ends the kernel early, with what `poll` raised in `raised`.

    A generator that waits within its `try`, because Ctrl-C is delivered on the way in: a function would not yet be in
    a `try` of its own, and ctypes would drop it. It knows no Call, so no cycle keeps the arrays of a call alive.
    """

    def breaths() -> Generator[int, None, None]:
        try:
            yield 0
            while True:
                poll()
                yield 0
        except GeneratorExit:
            raise
        except BaseException as error:  # also KeyboardInterrupt: `Call.run` raises it again
            raised.append(error)
            yield 1

    begun = breaths()
    next(begun)
    return POLL(begun.__next__)
