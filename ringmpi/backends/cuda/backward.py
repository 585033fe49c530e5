"""The backward pass of the CUDA backend: one launch for the gradients of queries, one or two for those of keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from ringmpi.backends.base import Poll
from ringmpi.backends.cuda.arguments import BACKWARD
from ringmpi.backends.cuda.call import Inputs
from ringmpi.backends.cuda.instances import WARPS, Instance
from ringmpi.backends.work_check import check_sums
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.gradients import Gradients, Saved
from ringmpi.core.work import HIGH, KEY_ORIGIN, KEY_START, LOW, ROW_ORIGIN, ROW_START, Work

_INNER = {"query": "query", "keys": "key", "key": "key"}  # part of an instance: whose gradient is the inner one
_OUTER = {"keys": "value", "value": "value"}


def add_gradients(
    inputs: Inputs,
    instances: dict[str, Instance],
    saved: Saved,
    work: Work,
    into: Gradients,
    *,
    poll: Poll | None,
) -> int:
    """Run the kernels.

    Parameters
    ----------
    inputs : Inputs
        Of q, k and v.
    instances : dict
        Those of these inputs, by the part that they give.
    saved : Saved
        Of the rows of q.
    work : Work
    into : Gradients
        Written.
    poll : function or None

    Returns
    -------
    int
        Pairs attended to, over batch and query heads.

    Raises
    ------
    ShapeError
        If the kernels do not sum in the dtype of `into`, or just one of `key` and `value` is there.
    """
    check_sums(into, accumulate_dtype(saved.grad_output.dtype))
    arguments = _Arguments(inputs, saved)
    attended = 0
    for part, instance in instances.items():
        if part == "query" or into.key is not None:
            table = work if part == "query" else transposed(work)
            attended = arguments.launch(instance, table, into, poll)
    return attended


def transposed(work: Work) -> Work:
    """The same pairs, rows and keys exchanged."""
    columns = [
        KEY_START,
        KEY_START + 1,
        ROW_START,
        ROW_START + 1,
        KEY_ORIGIN,
        KEY_ORIGIN + 1,
        ROW_ORIGIN,
        ROW_ORIGIN + 1,
    ]
    return np.concatenate([work[:, columns], -work[:, [HIGH, LOW]]], axis=1)


class _Arguments:
    """What all launches of a backward call are handed."""

    def __init__(self, inputs: Inputs, saved: Saved) -> None:
        self._inputs = inputs
        self._shared = np.zeros((), BACKWARD)
        inputs.put_rows(self._shared["grad_output"], saved.grad_output)
        wide = accumulate_dtype(saved.grad_output.dtype)
        for name in ("log_sum_exp", "delta"):
            self._shared[name] = inputs.on_device(getattr(saved, name).astype(wide, copy=False)).data.ptr

    def launch(self, instance: Instance, work: Work, into: Gradients, poll: Poll | None) -> int:
        """One kernel; adds what it gives to `into`."""
        argument, heads = self._shared.copy(), self._inputs.heads
        sums: list[tuple[Any, Any]] = []
        for side, whose in (("inner", _INNER), ("outer", _OUTER)):
            host = getattr(into, whose[instance.part]) if instance.part in whose else None
            if host is not None:
                sums.append((host, self._inputs.on_device(host)))
                argument[side] = sums[-1][1].data.ptr
        blocks = -(-self._inputs.lengths[0] // instance.block_rows)
        slopes = self._inputs.device.cupy.zeros(blocks * heads.query_slabs * WARPS, np.float64)
        if instance.part == "query" and self._inputs.has_slopes:
            argument["slope"] = slopes.data.ptr
        attended = self._inputs.launch(instance, work, argument, poll=poll)
        for host, array in sums:
            host[...] = array.get()
        if argument["slope"]:
            by_head = slopes.get().reshape(blocks, heads.batch, heads.query_heads, WARPS).sum((0, 1, 3))
            np.add(into.slope, by_head, out=into.slope, casting="same_kind")
        return int(attended)
