"""From arrays to one launch of a kernel, and back from it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import numpy as np

from ringmpi.backends.base import Poll
from ringmpi.backends.cuda.arguments import PROBLEM
from ringmpi.backends.cuda.block_lists import block_lists
from ringmpi.backends.cuda.device_array import DeviceArray
from ringmpi.backends.cuda.instances import WARPS, Instance
from ringmpi.backends.cuda.memory import DeviceMemory
from ringmpi.core.dropout import WORDS
from ringmpi.core.scoring import Scoring
from ringmpi.core.shapes import head_shape
from ringmpi.core.work import Work
from ringmpi.errors import BackendError

POLL_SECONDS = 1e-3
LOOKS_AT_ONCE = 100  # some 0.1 ms: a short kernel ends within, and a sleep would take longer than it


class Inputs:
    """What the launches of one call share, on the device; keeps alive what kernels have pointers to.

    Parameters
    ----------
    memory : DeviceMemory
    q, k, v : DeviceArray or NumPy array
        What is on the host is copied for this call.
    scoring, finite
        As in backends/base.py.
    """

    def __init__(self, memory: DeviceMemory, q: Any, k: Any, v: Any, scoring: Scoring, *, finite: bool) -> None:
        self.memory, self.device = memory, memory.device
        self.heads, self.lengths = head_shape(q.shape, k.shape, v.shape), (q.shape[2], k.shape[2])
        self._alive: list[DeviceArray] = []
        self._problem = np.zeros((), PROBLEM)
        for name, array in zip("qkv", (q, k, v), strict=True):
            self.put_rows(self._problem[name], array)
        self._describe_scoring(scoring)
        self._problem["queries"], self._problem["keys"], self._problem["finite"] = *self.lengths, finite
        for name in ("batch", "query_heads", "key_heads", "head_dim", "value_dim"):
            self._problem[name] = getattr(self.heads, name)

    @property
    def has_slopes(self) -> bool:
        """Whether there is ALiBi."""
        return bool(self._problem["scoring"]["slopes"])

    def on_device(self, array: Any, *, aligned: bool = False) -> DeviceArray:
        """The array where it is, or a copy there, kept alive as long as this object."""
        there = array if isinstance(array, DeviceArray) else self.memory.put(array, aligned=aligned)
        self._alive.append(there)
        return there

    def put_rows(self, to: Any, array: Any) -> None:
        """Describe in `to` (arguments.ARRAY) an array on the device, whose rows start at multiples of 16 bytes."""
        found = self.on_device(array, aligned=True)
        to["data"], to["stride"] = found.ptr, found.strides

    def launch(
        self, instance: Instance, work: Work, argument: Any, *, by_key: bool = False, poll: Poll | None = None
    ) -> int:
        """Run one kernel on all its blocks.

        Parameters
        ----------
        instance : Instance
        work : Work
            Its rows are what the blocks of this instance stand for.
        argument : record
            arguments.FORWARD or BACKWARD; its problem is filled in here.
        by_key : bool
            Whether blocks stand for keys, not for rows.
        poll : function or None
            Called while the kernel runs.

        Returns
        -------
        int
            Pairs attended to.
        """
        lists = block_lists(work, self.lengths[by_key], instance.block_rows)
        if not len(lists.order):
            return 0
        slabs = self.heads.batch * (self.heads.key_heads if by_key else self.heads.query_heads)
        grid = len(lists.order) * slabs
        attended = self.memory.empty((grid * WARPS,), np.dtype(np.int64))
        self.memory.clear(attended)
        problem = argument["problem"]
        problem[...] = self._problem
        problem["attended"] = attended.ptr
        tables = [self.memory.put(table) for table in (np.ascontiguousarray(work, np.int64), *lists)]
        for name, table in zip(("items", "list", "first", "order"), tables, strict=True):
            problem["work"][name] = table.ptr
        self.device.launch(instance, grid, 32 * WARPS, argument)
        self._wait(poll)
        return int(self.memory.get(attended).sum())

    def _describe_scoring(self, scoring: Scoring) -> None:
        to = self._problem["scoring"]
        to["scale"], to["softcap"], to["seed"] = scoring.scale, scoring.softcap or 0, scoring.seed
        to["least"], to["dropout_factor"] = int(scoring.dropout * WORDS), 1 / (1 - scoring.dropout)
        if scoring.alibi_slopes is not None:
            to["slopes"] = self.on_device(scoring.alibi_slopes.astype(np.float64)).ptr

    def _wait(self, poll: Poll | None) -> None:
        """Until the kernel has ended, while messages move on. Interrupted, it ends first: it has pointers to arrays."""
        ended, looks = self.device.mark(), 0
        try:
            while not ended.done:
                if poll is not None:
                    poll()
                looks += 1
                if looks > LOOKS_AT_ONCE:
                    time.sleep(POLL_SECONDS)
        except BaseException:
            with suppress(BackendError):  # of a device that is broken; the error on its way says so
                self.device.wait()
            raise


def needs_extras(scoring: Scoring, *, finite: bool) -> bool:
    """Whether a kernel has to know softcap, ALiBi, dropout, or NaN and inf."""
    return bool(scoring.softcap or scoring.dropout or not finite) or scoring.alibi_slopes is not None
