"""From NumPy arrays to one launch of a kernel, and back from it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ringmpi.backends.base import Poll
from ringmpi.backends.cuda.arguments import PROBLEM
from ringmpi.backends.cuda.block_lists import block_lists
from ringmpi.backends.cuda.device import Device
from ringmpi.backends.cuda.instances import WARPS, Instance
from ringmpi.core.dropout import WORDS
from ringmpi.core.dtypes import native
from ringmpi.core.partial import Array
from ringmpi.core.scoring import Scoring
from ringmpi.core.shapes import head_shape
from ringmpi.core.work import Work

POLL_SECONDS = 1e-3
CHUNK_BYTES = 16  # rows of q, k and v start at multiples of this


class Inputs:
    """What the launches of one call share, on the device; keeps alive what kernels have pointers to.

    Parameters
    ----------
    device : Device
    q, k, v, scoring, finite
        As in backends/base.py.
    """

    def __init__(self, device: Device, q: Array, k: Array, v: Array, scoring: Scoring, *, finite: bool) -> None:
        self.device, self.heads, self.lengths = device, head_shape(q.shape, k.shape, v.shape), (q.shape[2], k.shape[2])
        self._alive: list[Any] = []
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

    def on_device(self, array: Any) -> Any:
        """A copy there, dense, kept alive as long as this object."""
        self._alive.append(self.device.cupy.asarray(np.ascontiguousarray(array)))
        return self._alive[-1]

    def put_rows(self, to: Any, array: Array) -> None:
        """Describe in `to` (arguments.ARRAY) a copy on the device, whose rows start at multiples of 16 bytes."""
        bits = np.ascontiguousarray(array.astype(native(array.dtype), copy=False)).view(f"u{array.dtype.itemsize}")
        missing = -bits.shape[-1] % (CHUNK_BYTES // bits.itemsize)
        found = self.on_device(np.pad(bits, [(0, 0)] * 3 + [(0, missing)]) if missing else bits)
        to["data"], to["stride"] = found.data.ptr, found.strides[:3]

    def launch(self, instance: Instance, work: Work, argument: Any, *, poll: Poll | None) -> int:
        """Run one kernel on all its blocks.

        Parameters
        ----------
        instance : Instance
        work : Work
            Its rows are what the blocks of this instance stand for.
        argument : record
            arguments.FORWARD or BACKWARD; its problem is filled in here.
        poll : function or None
            Called while the kernel runs.

        Returns
        -------
        int
            Pairs attended to.
        """
        by_key = instance.part not in ("output", "query")
        lists = block_lists(work, self.lengths[by_key], instance.block_rows)
        if not len(lists.order):
            return 0
        slabs = self.heads.batch * (self.heads.key_heads if by_key else self.heads.query_heads)
        grid = len(lists.order) * slabs
        attended = self.device.cupy.zeros(grid * WARPS, np.int64)
        problem = argument["problem"]
        problem[...] = self._problem
        problem["attended"] = attended.data.ptr
        tables = np.ascontiguousarray(work, np.int64), *lists
        on_device = [self.device.cupy.asarray(table) for table in tables]
        for name, table in zip(("items", "list", "first", "order"), on_device, strict=True):
            problem["work"][name] = table.data.ptr
        kernel = self.device.kernel(instance)
        kernel((grid,), (32 * WARPS,), (argument,), shared_mem=instance.shared_bytes)
        self._wait(poll)
        return int(attended.get().sum())

    def _describe_scoring(self, scoring: Scoring) -> None:
        to = self._problem["scoring"]
        to["scale"], to["softcap"], to["seed"] = scoring.scale, scoring.softcap or 0, scoring.seed
        to["least"], to["dropout_factor"] = int(scoring.dropout * WORDS), 1 / (1 - scoring.dropout)
        if scoring.alibi_slopes is not None:
            to["slopes"] = self.on_device(scoring.alibi_slopes.astype(np.float64)).data.ptr

    def _wait(self, poll: Poll | None) -> None:
        finished = self.device.cupy.cuda.Event()
        finished.record()
        while not finished.done:
            if poll is not None:
                poll()
            time.sleep(POLL_SECONDS)


def needs_extras(scoring: Scoring, *, finite: bool) -> bool:
    """Whether a kernel has to know softcap, ALiBi, dropout, or NaN and inf."""
    return bool(scoring.softcap or scoring.dropout or not finite) or scoring.alibi_slopes is not None
