"""The CUDA backend: fused kernels on one GPU (kernels/forward.cuh, kernels/backward.cuh)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ringmpi.backends.base import CALL_SECONDS, Poll
from ringmpi.backends.cuda.arguments import FORWARD
from ringmpi.backends.cuda.backward import add_gradients
from ringmpi.backends.cuda.call import Inputs, needs_extras
from ringmpi.backends.cuda.device import Device
from ringmpi.backends.cuda.instances import backward_instance, forward_instance
from ringmpi.backends.cuda.memory import DeviceMemory
from ringmpi.backends.work_check import check_work
from ringmpi.core.gradients import Gradients, Saved
from ringmpi.core.partial import Array, Partial, carried_partial
from ringmpi.core.scoring import Scoring
from ringmpi.core.shapes import HeadShape, head_shape
from ringmpi.core.work import Work

FLOPS_PER_SECOND = {2: 100e12, 4: 15e12, 8: 15e12}  # by bytes of a number: an A100, on paper (docs/cuda-kernels.md)


class CudaBackend:
    """Block attention on one GPU; backends/base.py has the contract.

    **Which bits depend on what.** Keys are cut into tiles (instances.py has their length) at local indices 0, n, 2 n,
    ... of the arrays k and v. A row meets its keys item by item in the order of the table, and for an item tile by
    tile. What a row's Partial is after a tile depends on that row of q, on its Partial before, on the keys and values
    of the tile, and on which of them the row sees. Keys that a row does not see add exactly 0. Of gradients the same
    holds; those of keys and values with rows and keys exchanged, the heads of a group one after the other for each
    tile.

    Parameters
    ----------
    device : Device
        Its arrays are DeviceArrays (memory.py); NumPy arrays are copied in each call.
    rounded : bool
        Weights are rounded to 16 bit before they meet 16-bit values: faster, and off by more than sums in float32 are.
        Has no effect on wider inputs, nor with softcap, ALiBi, dropout, NaN or inf.
    """

    name: ClassVar[str] = "cuda"
    reproducible: ClassVar[bool] = True
    records: ClassVar[bool] = False

    def __init__(self, device: Device, *, rounded: bool = False) -> None:
        self.memory, self._rounded = DeviceMemory(device), rounded
        self.arithmetic = device.architecture

    @property
    def device(self) -> Device:
        """The GPU."""
        return self.memory.device

    def call_budget(self, heads: HeadShape, dtype: np.dtype) -> int:
        """Rows x keys that take about 0.3 s over all heads: tensor cores make 16 bit the fastest by far."""
        flops = 2 * heads.query_slabs * (heads.head_dim + heads.value_dim)
        return max(int(CALL_SECONDS * FLOPS_PER_SECOND[dtype.itemsize] / flops), 1)

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
        heads = head_shape(q.shape, k.shape, v.shape)
        carried = carried_partial(into, heads, q.shape[2], q.dtype)
        check_work(work, q.shape[2], k.shape[2])
        extras = needs_extras(scoring, finite=finite)
        instance = forward_instance(q.dtype, heads, extras=extras, rounded=self._rounded)
        inputs = Inputs(self.memory, q, k, v, scoring, finite=finite)
        argument = np.zeros((), FORWARD)
        sums = [(getattr(carried, name), name) for name in ("row_max", "row_sum", "weighted_sum")]
        there = [(array, inputs.on_device(array), name) for array, name in sums]
        for _, on_device, name in there:
            argument[name] = on_device.ptr
        attended = inputs.launch(instance, work, argument, poll=poll)
        for array, on_device, _ in there:
            if array is not on_device:
                array[...] = self.memory.get(on_device)
        return carried, attended

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
        check_work(work, q.shape[2], k.shape[2])
        inputs = Inputs(self.memory, q, k, v, scoring, finite=finite)
        extras = needs_extras(scoring, finite=finite)
        instance = backward_instance(q.dtype, inputs.heads, extras=extras, rounded=self._rounded)
        return add_gradients(inputs, instance, saved, work, into, poll=poll)
