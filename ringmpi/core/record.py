"""What a row says of its weights, from sums that merge as those of the online softmax do: no weight is kept.

    score_sum    = sum_j e^(s_j - m) (s_j - m)
    distance_sum = sum_j e^(s_j - m) |i - j|
    sink_sum     = sum_(j < n) e^(s_j - m)

With l = row_sum and p_j = e^(s_j - m) / l:

    entropy = -sum p_j ln p_j = ln l - score_sum / l    distance = distance_sum / l    sinks = sink_sum / l

Both terms of the entropy are at least 0 (l >= 1, score_sum <= 0): nothing cancels. The largest score is row_max itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.printed import Printed
from ringmpi.core.whole_numbers import whole_number
from ringmpi.errors import ShapeError

Array = NDArray[np.floating]
Ints = NDArray[np.int64]
NO_KEY = -1
FIRST_KEYS = 4  # unless asked for others


@dataclass(frozen=True)
class Recording:
    """What is asked: all of a Record. `sinks`: the weight on that many first keys of the sequence is summed."""

    sinks: int = FIRST_KEYS

    def __post_init__(self) -> None:
        """Refuse what counts no keys, or more than a kernel can."""
        if (keys := whole_number(self.sinks, 1)) is None:
            raise ShapeError(
                f"Recording has sinks = {self.sinks!r:.60}; it must be a whole number of keys >= 1, at most 2^53. "
                f"Leave it out for {FIRST_KEYS}."
            )
        object.__setattr__(self, "sinks", keys)


@dataclass(frozen=True)
class RecordSums:
    """The sums of some rows over the keys so far, relative to row_max of their Partial.

    score_sum     [batch, query_heads, queries]         score units, natural log, <= 0; accumulation dtype, as all sums
    distance_sum  [batch, query_heads, queries]         positions, >= 0
    sink_sum      [batch, query_heads, queries]         dimensionless, >= 0
    top_key       [batch, query_heads, queries] int64   position of a key of score row_max, the first; -1: no key yet
    sinks         int                                   keys at positions below it are in sink_sum
    """

    score_sum: Array
    distance_sum: Array
    sink_sum: Array
    top_key: Ints
    sinks: int

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """By name."""
        return {name: getattr(self, name) for name in SUMS}

    def mapped(self, view: Callable[[Any], Any]) -> RecordSums:
        """Of views of its arrays."""
        return RecordSums(
            view(self.score_sum), view(self.distance_sum), view(self.sink_sum), view(self.top_key), self.sinks
        )


SUMS = tuple(field.name for field in fields(RecordSums) if field.name != "sinks")


@dataclass(frozen=True, repr=False)
class Record(Printed):
    """What rows say about their weights p, without dropout. A row without keys has 0, top_score -inf and top_key -1.

    entropy    [(batch,) query_heads, queries]         nats: -sum p ln p; a sink logit counts as one more outcome
    distance   [(batch,) query_heads, queries]         positions: sum p |i - j|
    top_score  [(batch,) query_heads, queries]         score units, after scale, softcap and ALiBi
    top_key    [(batch,) query_heads, queries] int64   its position, the first of equals
    sinks      [(batch,) query_heads, queries]         sum of p over the first keys of the sequence (`Recording.sinks`)

    float64 for float64 input, else float32. Where a score is NaN, numbers are NaN and top_key is -1.
    """

    entropy: Array
    distance: Array
    top_score: Array
    top_key: Ints
    sinks: Array

    @property
    def arrays(self) -> list[NDArray[Any]]:
        """In the order of QUANTITIES."""
        return [getattr(self, name) for name in QUANTITIES]


QUANTITIES = tuple(field.name for field in fields(Record))


def sums_bytes(dtype: np.dtype) -> int:
    """Of the sums of one row; dtype: of accumulation."""
    return 3 * dtype.itemsize + 8


def record_bytes(dtype: np.dtype) -> int:
    """Of the record of one row; dtype: of accumulation."""
    return 4 * dtype.itemsize + 8


def uninitialised_record(shape: tuple[int, ...], dtype: np.dtype) -> Record:
    """Arrays to be filled. shape: [batch, query_heads, queries]; dtype: of accumulation."""
    return Record(*(np.empty(shape, np.int64 if name == "top_key" else dtype) for name in QUANTITIES))


def empty_sums(shape: tuple[int, ...], dtype: np.dtype, recording: Recording) -> RecordSums:
    """Of no keys: the identity of `merge_sums`. shape: [batch, query_heads, queries]; dtype: of accumulation."""
    score, distance, sink = (np.zeros(shape, dtype) for _ in range(3))
    return RecordSums(score, distance, sink, np.full(shape, NO_KEY, np.int64), int(recording.sinks))


@dataclass(frozen=True)
class Side:
    """One of two that merge: its sums, and row_max and row_sum that they go with."""

    sums: RecordSums
    row_max: Array
    row_sum: Array


def merge_sums(a: Side, b: Side, shift: Array) -> RecordSums:
    """The sums over the keys of both, relative to `shift`: `shift_of` the larger row_max. Inputs are not changed.

    sum e^(s - m)(s - m) = e^(m_a - m) (score_sum_a + (m_a - m) l_a) + the same of b.

    Raises
    ------
    ShapeError
        If they count different numbers of sinks.

    Source
    ------
    The identity follows from ln(xy) = ln x + ln y; the merge is that of Milakov & Gimelshein 2018, section 3.1.
    """
    if a.sums.sinks != b.sums.sinks:
        raise ShapeError(
            f"records differ: {a.sums.sinks} and {b.sums.sinks} first keys; both must count the same "
            f"number of first keys."
        )
    parts = [sums_relative_to(shift, side) for side in (a, b)]
    score, distance, sink = (x + y for x, y in zip(*parts, strict=True))
    top_key = first_of_largest((a.row_max, a.sums.top_key), (b.row_max, b.sums.top_key))
    return RecordSums(score, distance, sink, top_key, a.sums.sinks)


def sums_relative_to(shift: Array, side: Side) -> tuple[Array, Array, Array]:
    """score_sum, distance_sum and sink_sum relative to another maximum, finite and not below its own where it has one.

    0 where that is so much larger, or there was no key, whatever else is inf.
    """
    sums, delta = side.sums, side.row_max - shift
    factor = np.exp(delta)
    moved = np.where(factor == 0, 0, delta) * side.row_sum
    return factor * (sums.score_sum + moved), factor * sums.distance_sum, factor * sums.sink_sum


def first_of_largest(a: tuple[Array, Ints], b: tuple[Array, Ints]) -> Ints:
    """The key of the larger of two scores (score, key), of equal ones the smaller; NO_KEY gives way to any key."""
    (a_score, a_key), (b_score, b_key) = a, b
    first = np.where(a_key < 0, b_key, np.where(b_key < 0, a_key, np.minimum(a_key, b_key)))
    larger = np.where(a_score > b_score, a_key, np.where(b_score > a_score, b_key, first))
    return np.asarray(larger, np.int64)


def finalize_sums(total: Side, top_score: Array, top_key: Ints) -> Record:
    """Normalise once.

    Parameters
    ----------
    total : Side
        Over all keys, and the sink logit where there is one.
    top_score : array [batch, query_heads, queries]
        row_max of the keys alone.
    top_key : int64 [batch, query_heads, queries]
        Of the keys alone.

    Returns
    -------
    Record
        With a batch axis.
    """
    dtype = total.row_max.dtype
    divisor = np.where(total.row_sum == 0, dtype.type(1), total.row_sum)
    sums, unknown = total.sums, np.isnan(total.row_sum)
    return Record(
        entropy=np.log(divisor) - sums.score_sum / divisor,
        distance=sums.distance_sum / divisor,
        top_score=np.where(unknown, dtype.type(np.nan), top_score),
        top_key=np.where(unknown, NO_KEY, top_key),
        sinks=sums.sink_sum / divisor,
    )
