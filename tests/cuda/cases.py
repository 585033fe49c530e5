"""Inputs that take a kernel through all it can meet: tails, edges, empty rows, several items, heads in groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringmpi import Mask
from ringmpi.backends.cuda.attend import CudaBackend
from ringmpi.backends.cuda.instances import WIDTHS, Instance, backward_instance, forward_instance
from ringmpi.core.dtypes import SUPPORTED, accumulate_dtype
from ringmpi.core.gradients import Gradients, Saved, delta_of
from ringmpi.core.partial import Partial, empty_partial, finalize
from ringmpi.core.scoring import Scoring
from ringmpi.core.shapes import head_shape
from ringmpi.core.work import KEY_START, KEY_STOP, Work
from tests.backends.dense import inputs
from tests.backends.meetings import Meeting, meet_all

Array = Any
EXTRAS = Scoring(0.2, 3.0, np.array([0.5, 0.125]), dropout=0.3, seed=5)
PLAIN = Scoring(0.2)
ROWS, KEYS = 150, 171


@dataclass(frozen=True)
class Case:
    """One forward and backward problem for one set of instances.

    Attributes
    ----------
    dtype : dtype
    width : int
        Of the instances; heads have fewer columns, values fewer than queries.
    rounded : bool
        Weights are rounded to 16 bit.
    plain : bool
        The scores are scaled, and nothing else. So it is where weights are rounded.
    lengths : tuple of int
        Rows and keys.
    """

    dtype: np.dtype
    width: int
    rounded: bool = False
    plain: bool = False
    lengths: tuple[int, int] = (ROWS, KEYS)

    def __str__(self) -> str:
        return f"{self.dtype}-{self.width}{'-rounded' * self.rounded}{'-plain' * self.plain}"

    @property
    def scoring(self) -> Scoring:
        """With everything, or just a scale."""
        return PLAIN if self.plain or self.rounded else EXTRAS

    @property
    def sums(self) -> np.dtype:
        """The dtype of sums."""
        return accumulate_dtype(self.dtype)

    def meeting(self) -> Meeting:
        """Keys that many rows see in full, a window, its sinks, and four rows without keys.

        So there are tiles that a whole block sees, edges, tails, several items for a row.
        """
        rows, keys = self.lengths
        above = 128 if rows > 132 else 64
        full = Mask.slices([(0, above, 0, 64, -999, 999)])
        others = Mask.slices([(0, above, 64, keys, -999, 999), (above + 4, rows, 0, keys, -999, 999)])
        mask = full | (Mask.window(2 * rows // 3, 3) | Mask.sinks(5)) & others
        return meet_all(mask, self.lengths, [range(rows)], [range(keys)])

    def inputs(self) -> tuple[Array, Array, Array, Array]:
        """Q, k, v and grad_output; two query heads share a key head, columns fill the width but for a few."""
        rng = np.random.default_rng(7)
        head_dim, value_dim = self.width - 8, self.width - 16
        q, k, v = inputs(rng, self.meeting(), (1, 1, 2, head_dim, value_dim), self.dtype)
        return q, k, v, rng.standard_normal((1, 2, self.lengths[0], value_dim)).astype(self.dtype)

    def instances(self) -> tuple[Instance, Instance]:
        """What computes it: forward, backward."""
        heads = head_shape(*(array.shape for array in self.inputs()[:3]))
        options = {"extras": not (self.plain or self.rounded), "rounded": self.rounded}
        return forward_instance(self.dtype, heads, **options), backward_instance(self.dtype, heads, **options)


@dataclass(frozen=True)
class LongCase(Case):
    """Every row sees every key, and nothing cancels: what is lost of sums with each key, or each row, adds up.

    Of many keys the output is of interest, of many rows the gradients. (Those of v with many keys are not: a weight of
    float16 below 6e-8 is lost there.)
    """

    @property
    def backward(self) -> bool:
        """Whether there are more rows than keys."""
        return self.lengths[0] > self.lengths[1]

    def __str__(self) -> str:
        return f"{self.dtype}-{self.width}-{self.lengths[0]}-rows-{self.lengths[1]}-keys"

    def meeting(self) -> Meeting:
        """All of it."""
        return meet_all(Mask.full(), self.lengths, *([range(length)] for length in self.lengths))

    def inputs(self) -> tuple[Array, Array, Array, Array]:
        """The same, with 1 added to v and grad_output."""
        q, k, v, grad_output = super().inputs()
        return q, k, (v + np.float32(1)).astype(self.dtype), (grad_output + np.float32(1)).astype(self.dtype)


def long_cases(width: int, length: int) -> tuple[LongCase, ...]:
    """Of 16 bit, with weights that keep all their bits: so many keys, and so many rows."""
    shapes = (64, length), (length, 64)
    return tuple(
        LongCase(x, width, plain=True, lengths=shape) for x in SUPPORTED if x.itemsize == 2 for shape in shapes
    )


EVERY_CASE = tuple(
    Case(dtype, width, rounded)
    for width in WIDTHS
    for dtype in SUPPORTED
    for rounded in (False, True)
    if dtype.itemsize == 2 or not rounded
)
PLAIN_CASES = tuple(Case(dtype, width, plain=True) for dtype in SUPPORTED for width in (64, 192))


def within(work: Work, keys: range) -> Work:
    """Of some work what meets keys of a range."""
    part = work.copy()
    for bound in (KEY_START, KEY_STOP):
        part[:, bound] = part[:, bound].clip(keys.start, keys.stop)
    return part


def pieces(keys: int, count: int) -> Iterator[range]:
    """Keys 0, 1, ... cut into `count` pieces, nearly equal ones."""
    ends = [keys * n // count for n in range(count + 1)]
    yield from map(range, ends, ends[1:])


def carried(backend: CudaBackend, case: Case, steps: int) -> tuple[Partial, int]:
    """The Partial of a case and its pairs, the keys met in so many calls, as ring steps bring them."""
    q, k, v, _ = case.inputs()
    work = case.meeting().work
    partial, pairs = empty_partial(*q.shape[:3], v.shape[3], case.sums), 0
    for piece in pieces(case.lengths[1], steps):
        pairs += backend.attend(q, k, v, within(work, piece), case.scoring, into=partial)[1]
    return partial, pairs


def saved_of(partial: Partial, grad_output: Array, dtype: np.dtype) -> Saved:
    """What a forward pass leaves; `partial` stays as it is."""
    output, log_sum_exp = finalize(copied(partial), dtype)
    return Saved(grad_output, log_sum_exp, delta_of(grad_output, output, None, log_sum_exp.dtype))


def zeros(q: Array, k: Array, v: Array, wide: np.dtype) -> Gradients:
    """Nothing added yet."""
    return Gradients(*(np.zeros(x.shape, wide) for x in (q, k, v)), slope=np.zeros(q.shape[1], wide))


def gradients(backend: CudaBackend, case: Case, partial: Partial, steps: int = 1) -> tuple[Gradients, int]:
    """Those of a case and its pairs, over so many calls."""
    q, k, v, grad_output = case.inputs()
    into, pairs = zeros(q, k, v, case.sums), 0
    saved, work = saved_of(partial, grad_output, case.dtype), case.meeting().work
    for piece in pieces(case.lengths[1], steps):
        part = within(work, piece)
        pairs += backend.attend_backward(q, k, v, saved, part, case.scoring, into=into)
    return into, pairs


def copied(partial: Partial) -> Partial:
    """The same, to be used up."""
    return Partial(partial.row_max.copy(), partial.row_sum.copy(), partial.weighted_sum.copy())
