"""The attention of a block of queries to a set of keys, not yet normalised: a commutative monoid.

    row_max = m = max_j s_j      row_sum = l = sum_j e^(s_j - m)      weighted_sum = sum_j e^(s_j - m) v_j

Two disjoint sets of keys merge into their union whatever their order, so the ring may meet keys in any order. Where
rows are recorded, their sums (core/record.py) merge along.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.record import Record, Recording, RecordSums, Side, empty_sums, finalize_sums, merge_sums
from ringmpi.core.shapes import HeadShape
from ringmpi.errors import ShapeError

Array = NDArray[np.floating]


@dataclass(frozen=True)
class Partial:
    """The triple of the online softmax, in the accumulation dtype (core/dtypes.py).

    row_max       [batch, query_heads, queries]             score units, natural log; -inf: no key seen yet
    row_sum       [batch, query_heads, queries]             dimensionless, >= 0
    weighted_sum  [batch, query_heads, queries, value_dim]  units of value
    record        None: rows are not recorded
    """

    row_max: Array
    row_sum: Array
    weighted_sum: Array
    record: RecordSums | None = None

    def moved(self, move: Callable[[Array], Array]) -> Partial:
        """The same sums, each array as `move` gives it: in another memory."""
        return replace(
            self, row_max=move(self.row_max), row_sum=move(self.row_sum), weighted_sum=move(self.weighted_sum)
        )


def empty_partial(
    batch: int, heads: int, queries: int, value_dim: int, dtype: np.dtype, *, recording: Recording | None = None
) -> Partial:
    """The attention to no keys: the identity of `merge`."""
    rows = (batch, heads, queries)
    record = None if recording is None else empty_sums(rows, dtype, recording)
    return Partial(np.full(rows, -np.inf, dtype), np.zeros(rows, dtype), np.zeros((*rows, value_dim), dtype), record)


def carried_partial(into: Partial | None, heads: HeadShape, queries: int, dtype: np.dtype) -> Partial:
    """`into`, the Partial that a kernel call is to add to; an empty one for None.

    Parameters
    ----------
    queries : int
        Rows of the call.
    dtype : dtype
        Of its queries, keys and values.

    Raises
    ------
    ShapeError
        If `into` is not one of such queries and values.
    """
    wide, shape = accumulate_dtype(dtype), (heads.batch, heads.query_heads, queries, heads.value_dim)
    if into is None:
        return empty_partial(*shape, wide)
    if into.weighted_sum.shape != shape or into.weighted_sum.dtype != wide:
        raise ShapeError(
            f"the carried partial is {into.weighted_sum.shape} {into.weighted_sum.dtype}, but these queries and values "
            f"need {shape} {wide}. Carry a partial only over calls with the same queries."
        )
    if into.record is not None and any(array.shape != shape[:3] for array in into.record.arrays.values()):
        raise ShapeError(
            f"the record of the carried partial has rows {into.record.top_key.shape}, its sums {shape[:3]}. Make both "
            f"with empty_partial."
        )
    return into


def shift_of(row_max: Array) -> Array:
    """What to subtract from scores before exp: the maximum, and 0 where it is -inf (-inf - -inf would be NaN)."""
    return np.where(np.isneginf(row_max), row_max.dtype.type(0), row_max)


def merge(a: Partial, b: Partial) -> Partial:
    """Combine the attention of the same queries to two disjoint sets of keys.

    With m = max(m_a, m_b):  l = e^(m_a - m) l_a + e^(m_b - m) l_b,  and the weighted sums likewise.
    Commutative; associative up to rounding; merging with `empty_partial` changes no bit.

    Parameters
    ----------
    a, b : Partial
        Of equal shapes and dtype.

    Returns
    -------
    Partial
        New arrays; the inputs are not changed.

    Raises
    ------
    ShapeError
        If the shapes or dtypes of `a` and `b` differ, or only one of them records.

    Source
    ------
    Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", section 3.1; Liu et al. 2023, eq. 4.
    """
    if a.weighted_sum.shape != b.weighted_sum.shape or a.weighted_sum.dtype != b.weighted_sum.dtype:
        raise ShapeError(
            f"partials differ: {a.weighted_sum.shape} {a.weighted_sum.dtype} and "
            f"{b.weighted_sum.shape} {b.weighted_sum.dtype}; merge takes two of the same queries, in one dtype."
        )
    row_max = np.maximum(a.row_max, b.row_max)
    shift = shift_of(row_max)
    alpha, beta = np.exp(a.row_max - shift), np.exp(b.row_max - shift)
    return Partial(
        row_max,
        alpha * a.row_sum + beta * b.row_sum,
        alpha[..., None] * a.weighted_sum + beta[..., None] * b.weighted_sum,
        _merged_records(a, b, shift),
    )


def _merged_records(a: Partial, b: Partial, shift: Array) -> RecordSums | None:
    if a.record is None and b.record is None:
        return None
    if a.record is None or b.record is None:
        raise ShapeError(
            "one of two partials records its rows and the other does not; both must record rows, or neither."
        )
    return merge_sums(Side(a.record, a.row_max, a.row_sum), Side(b.record, b.row_max, b.row_sum), shift)


def sink_partial(sink_logits: Array, like: Partial) -> Partial:
    """A learnable sink: one more score in every row's normaliser, with value 0.

    Parameters
    ----------
    sink_logits : array [query_heads]
        Score units. -inf: this head has no sink.
    like : Partial
        Gives shapes and dtype.
    """
    row_max = np.broadcast_to(sink_logits.astype(like.row_max.dtype)[None, :, None], like.row_max.shape)
    row_sum = np.where(np.isneginf(row_max), 0, 1).astype(like.row_sum.dtype)
    record = like.record and empty_sums(row_max.shape, row_max.dtype, Recording(like.record.sinks))
    return Partial(row_max, row_sum, np.zeros_like(like.weighted_sum), record)


def finalize(partial: Partial, dtype: np.dtype) -> tuple[Array, Array]:
    """Normalise once and cast once. Uses up `partial`: its weighted_sum is divided in place.

    Parameters
    ----------
    partial : Partial
    dtype : dtype
        Of the output.

    Returns
    -------
    output : array [batch, query_heads, queries, value_dim], `dtype`
        0 where a row saw no key.
    log_sum_exp : array [batch, query_heads, queries], accumulation dtype
        Natural logarithm; -inf where a row saw no key.
    """
    divisor = np.where(partial.row_sum == 0, partial.row_sum.dtype.type(1), partial.row_sum)
    output = np.divide(partial.weighted_sum, divisor[..., None], out=partial.weighted_sum)
    seen = ~np.isneginf(partial.row_max)
    log_sum_exp = np.where(seen, shift_of(partial.row_max) + np.log(divisor), partial.row_max)
    return output.astype(dtype, copy=False), log_sum_exp.astype(partial.row_max.dtype, copy=False)


def finalize_record(keys: Partial, total: Partial) -> Record | None:
    """What the rows of a Partial say of their weights; None where they are not recorded.

    Parameters
    ----------
    keys : Partial
        Over all keys: of these is the largest score.
    total : Partial
        The same, or merged with the sink logits: of these are the weights.
    """
    if keys.record is None or total.record is None:
        return None
    return finalize_sums(Side(total.record, total.row_max, total.row_sum), keys.row_max, keys.record.top_key)
