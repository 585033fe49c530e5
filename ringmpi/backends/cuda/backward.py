"""The backward pass of the CUDA backend: one launch for the gradients of queries, one or two for those of keys.

A launch is left out where nothing that it gives is wanted.
"""

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
from ringmpi.errors import ExactnessError

_INNER = {"query": "query", "keys": "key", "key": "key"}  # by what a launch gives: whose gradient is the inner one
_OUTER = {"keys": "value", "value": "value"}


def add_gradients(
    inputs: Inputs,
    instance: Instance,
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
    instance : Instance
        Of these inputs.
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
        If the kernels do not sum in the dtype of `into`.
    ExactnessError
        If the launches did not attend to the same pairs.
    """
    check_sums(into, accumulate_dtype(saved.grad_output.dtype))
    arguments = _Arguments(inputs, saved)
    attended = {
        given: arguments.launch(instance, given, work, into, poll)
        for given in instance.launches
        if _is_wanted(given, into, has_slopes=inputs.has_slopes)
    }
    if len(set(attended.values())) > 1:
        counts = ", ".join(f"{pairs:,} ({given})" for given, pairs in attended.items())
        raise ExactnessError(
            f"the launches of {instance.label} attended to different pairs: {counts}. The gradients would be wrong and "
            f"are not returned. Please report this with the output of ringmpi info."
        )
    return next(iter(attended.values()), 0)


def _is_wanted(given: str, into: Gradients, *, has_slopes: bool) -> bool:
    """Whether a launch gives anything that is; gradients of slopes come with those of queries."""
    wanted = (getattr(into, whose[given]) for whose in (_INNER, _OUTER) if given in whose)
    of_slopes = given == "query" and has_slopes and into.key is not None
    return of_slopes or any(array is not None for array in wanted)


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
            rows = getattr(saved, name)
            rows = rows.astype(wide, copy=False) if isinstance(rows, np.ndarray) else rows
            self._shared[name] = inputs.on_device(rows).ptr

    def launch(self, instance: Instance, given: str, work: Work, into: Gradients, poll: Poll | None) -> int:
        """One launch; adds the gradients that it gives to `into`."""
        memory, heads, by_key = self._inputs.memory, self._inputs.heads, given != "query"
        argument = self._shared.copy()
        argument["by_key"] = by_key
        sums: list[tuple[Any, Any]] = []
        for side, whose in (("inner", _INNER), ("outer", _OUTER)):
            array = getattr(into, whose[given]) if given in whose else None
            if array is not None:
                sums.append((array, self._inputs.on_device(array)))
                argument[side] = sums[-1][1].ptr
        blocks = -(-self._inputs.lengths[0] // instance.block_rows)
        slopes = None
        if not by_key and self._inputs.has_slopes:
            shape = blocks, heads.batch, heads.query_heads, WARPS
            slopes = memory.put(np.zeros(shape))
            argument["slope"] = slopes.ptr
        table = transposed(work) if by_key else work
        attended = self._inputs.launch(instance, table, argument, by_key=by_key, poll=poll)
        for array, on_device in sums:
            if array is not on_device:
                array[...] = memory.get(on_device)
        if slopes is not None:
            by_head = memory.get(slopes).sum((0, 1, 3))
            np.add(into.slope, by_head, out=into.slope, casting="same_kind")
        return int(attended)
