"""The backward pass of the native backend: what Python hands to backward.cpp.

**Which bits depend on what.** Rows are cut into tiles of 96 and keys into tiles of 192, at multiples of these local
indices, whatever a call holds. The gradient of a row of q gets one addition from each key tile and work item in which
it sees a key: key tiles in ascending order, within one the items in the order of the table. That of a key, and of its
value, gets one from each row tile, query head of its group and item, in this order. Each addition is a sum over the
keys (or rows) of the tile in ascending order, and those that the mask excludes add exactly 0. So these change no bit:
the number of threads; gradients that are left out; other rows and heads; for gradients of rows any cut of rows into
calls, and cuts of keys at multiples of 192 in ascending order; for gradients of keys any cut of keys, and cuts of
rows at multiples of 96 in ascending order.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ringmpi.backends.native.call import Call
from ringmpi.backends.native.shared_library import Array, Backward
from ringmpi.backends.work_check import check_sums
from ringmpi.core.dtypes import accumulate_dtype, native
from ringmpi.core.gradients import Gradients, Saved


def add_gradients(call: Call, q: Any, saved: Saved, into: Gradients, library: ctypes.CDLL, engine: int) -> int:
    """Run the kernel.

    Parameters
    ----------
    call : Call
        Of q, k and v.
    q : array [batch, query_heads, queries, head_dim]
    saved : Saved
        Of the rows of q.
    into : Gradients
        Written. Where some are None, the products that only these need are left out.
    library, engine
        As `NativeBackend` has them.

    Returns
    -------
    int
        Pairs attended to, over batch and query heads.

    Raises
    ------
    ShapeError
        If the kernel does not sum in the dtype of `into`.
    """
    wide, sums = accumulate_dtype(q.dtype), (into.query, into.key, into.value)
    check_sums(into, wide)
    rows = (array.astype(wide, copy=False)[..., None] for array in (saved.log_sum_exp, saved.delta))
    slope = np.zeros(call.problem.query_heads)
    backward = Backward(
        call.problem,
        call.array(saved.grad_output.astype(native(q.dtype), copy=False)),
        *(call.array(array) for array in rows),
        *(Array() if array is None else call.array(array) for array in sums),
        slope.ctypes.data,
    )
    call.run(lambda: library.ringmpi_attend_backward(engine, ctypes.byref(backward)))
    if call.problem.slopes:
        np.add(into.slope, slope, out=into.slope, casting="same_kind")
    return int(backward.problem.attended)
