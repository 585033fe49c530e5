"""Inputs that take a kernel through all it can meet: tails, edges, empty rows, several items, heads in groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ringmpi import Mask
from ringmpi.backends.cuda.attend import CudaBackend
from ringmpi.backends.cuda.instances import WIDTHS
from ringmpi.core.dtypes import SUPPORTED
from ringmpi.core.gradients import Gradients, Saved, delta_of
from ringmpi.core.partial import Partial, finalize
from ringmpi.core.scoring import Scoring
from tests.backends.dense import inputs
from tests.backends.meetings import Meeting, meet_all

Array = Any
EXTRAS = Scoring(0.2, 3.0, np.array([0.5, 0.125]), dropout=0.3, seed=5)
PLAIN = Scoring(0.2)
ROWS, KEYS = 150, 171


@dataclass(frozen=True)
class Case:
    """One forward and backward problem for one set of instances."""

    dtype: np.dtype
    widths: tuple[int, int]
    extras: bool
    rounded: bool = False

    def __str__(self) -> str:
        options = "-extras" * self.extras + "-rounded" * self.rounded
        return f"{self.dtype}-{self.widths[0]}x{self.widths[1]}{options}"

    @property
    def scoring(self) -> Scoring:
        """With everything, or just a scale."""
        return EXTRAS if self.extras else PLAIN

    def meeting(self) -> Meeting:
        """A window, its sinks, and a hole that no row of sees through: full tiles, edges, rows without keys."""
        mask = (Mask.window(100, 3) | Mask.sinks(5)) & Mask.slices(
            [(0, 60, 0, KEYS, -999, 999), (64, 150, 0, KEYS, -999, 999)]
        )
        return meet_all(mask, (ROWS, KEYS), [range(ROWS)], [range(KEYS)])

    def inputs(self) -> tuple[Array, Array, Array, Array]:
        """Q, k, v and grad_output; two query heads share a key head, columns fill the widths but for a few."""
        rng = np.random.default_rng(7)
        head_dim, value_dim = self.widths[0] - 8, self.widths[1] - 8
        q, k, v = inputs(rng, self.meeting(), (1, 1, 2, head_dim, value_dim), self.dtype)
        return q, k, v, rng.standard_normal((1, 2, ROWS, value_dim)).astype(self.dtype)


EVERY_CASE = tuple(
    Case(dtype, widths, extras, rounded)
    for dtype in SUPPORTED
    for widths in WIDTHS
    for extras, rounded in ((True, False), (False, False), (False, True))
    if dtype.itemsize == 2 or extras
)


def saved_of(partial: Partial, grad_output: Array, dtype: np.dtype) -> Saved:
    """What a forward pass leaves."""
    output, log_sum_exp = finalize(partial, dtype)
    return Saved(grad_output, log_sum_exp, delta_of(grad_output, output, None, log_sum_exp.dtype))


def zeros(q: Array, k: Array, v: Array, wide: np.dtype) -> Gradients:
    """Nothing added yet."""
    return Gradients(*(np.zeros(x.shape, wide) for x in (q, k, v)), slope=np.zeros(q.shape[1], wide))


def gradients(backend: CudaBackend, case: Case, meeting: Meeting, partial: Partial) -> tuple[Gradients, int]:
    """Those of one call, and its pairs."""
    q, k, v, grad_output = case.inputs()
    into = zeros(q, k, v, partial.row_max.dtype)
    saved = saved_of(partial, grad_output, case.dtype)
    return into, backend.attend_backward(q, k, v, saved, meeting.work, case.scoring, into=into)
