"""Which keys a query may see: a mask is a set of (query position, key position) pairs, and sets have an algebra.

    Mask.documents([5, 9], within=Mask.causal()) | Mask.sinks(4)

A mask is defined without lengths; `resolve` turns it into disjoint slices (core/slices.py) once lengths are known.
Inside, every mask can be laid into many boxes at once (a box: one document), so that nothing loops over documents.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.slice_algebra import intersect, unite
from ringmpi.core.slices import UNBOUNDED, Slices, table, tighten, total_pairs
from ringmpi.core.whole_numbers import LARGEST_POSITION, whole_number
from ringmpi.errors import MaskError

Offset: TypeAlias = int | Literal["end"]
Boxes: TypeAlias = NDArray[np.int64]  # [n, 4]: query start, query stop, key start, key stop


class Mask(ABC):
    """A set of (query, key) position pairs. Combine with `&` (both) and `|` (either); overlaps count once."""

    @staticmethod
    def full() -> Mask:
        """Every query sees every key."""
        return _Band("full", -UNBOUNDED, UNBOUNDED)

    @staticmethod
    def causal(offset: Offset = 0) -> Mask:
        """Query i sees key j when j <= i + offset; "end" aligns the last query with the last key."""
        return _Band("causal", -UNBOUNDED, *_parted(offset))

    @staticmethod
    def window(left: int | None, right: int | None, offset: Offset = 0) -> Mask:
        """Query i sees the keys in [i + offset - left, i + offset + right], both ends included; None: unbounded."""
        shift, to_end = _parted(offset)
        low = -UNBOUNDED if left is None else shift - _reach("left", left)
        high = UNBOUNDED if right is None else shift + _reach("right", right)
        return _Band("window", low, high, to_end)

    @staticmethod
    def documents(
        q_lengths: Sequence[int] | NDArray[Any],
        k_lengths: Sequence[int] | NDArray[Any] | None = None,
        within: Mask | None = None,
    ) -> Mask:
        """Queries of a document see that document's keys, as `within` says (its positions start at 0 in each)."""
        queries = _lengths("q_lengths", q_lengths)
        keys = queries if k_lengths is None else _lengths("k_lengths", k_lengths)
        if len(queries) != len(keys):
            raise MaskError(f"{len(queries)} query lengths and {len(keys)} key lengths; each document needs both.")
        return _Documents(queries, keys, within or Mask.full())

    @staticmethod
    def keys(start: int, stop: int) -> Mask:
        """Every query sees the keys start <= j < stop."""
        first, last = whole_number(start, 0), whole_number(stop, 0)
        if first is None or last is None or first > last:
            raise MaskError(f"keys({start!r}, {stop!r}); expected whole numbers, 0 <= start <= stop <= 2^53.")
        return _Keys(first, last)

    @staticmethod
    def prefix(n: int) -> Mask:
        """Causal, but the first n keys are seen by all queries (prefix language models)."""
        return Mask.causal() | Mask.keys(0, n)

    @staticmethod
    def sinks(n: int) -> Mask:
        """The first n keys, causally. Usually joined to a window: `Mask.window(511, 0) | Mask.sinks(4)`."""
        return Mask.causal() & Mask.keys(0, n)

    @staticmethod
    def slices(rows: Sequence[Sequence[int]] | NDArray[Any]) -> Mask:
        """The union of slices {q0 <= i < q1, k0 <= j < k1, low <= j - i <= high}; rows [n, 6] in this order."""
        return _UserSlices(table(rows))

    def __and__(self, other: Mask) -> Mask:
        return _Combined("&", self, other)

    def __or__(self, other: Mask) -> Mask:
        return _Combined("|", self, other)

    def resolve(self, query_length: int, key_length: int) -> Slices:
        """Disjoint slices covering exactly this mask.

        Returns
        -------
        int64 [n, 6]
            (q0, q1, k0, k1, low, high), sorted by q0. Not canonical: equal masks may give other tables.

        Raises
        ------
        MaskError
            If documents do not add up to the lengths, or the disjoint form would explode.
        """
        return self.laid_into(np.array([[0, query_length, 0, key_length]], np.int64))

    def pairs(self, query_length: int, key_length: int) -> int:
        """Exact number of (query, key) pairs."""
        return total_pairs(self.resolve(query_length, key_length))

    def fingerprint(self) -> str:
        """Hash of the definition, equal on all ranks that mean the same mask."""
        return hashlib.blake2b(json.dumps(self.definition()).encode(), digest_size=16).hexdigest()

    @abstractmethod
    def laid_into(self, boxes: Boxes) -> Slices:
        """Disjoint slices of this mask in each box; positions of the mask count from the corner of the box."""

    @abstractmethod
    def allowed(self, query_length: int, key_length: int) -> NDArray[np.bool_]:
        """The mask as a boolean matrix, straight from its definition: for references and small lengths."""

    @abstractmethod
    def definition(self) -> list[Any]:
        """A JSON-able form that says what the mask means; long arrays by their hash."""


@dataclass(frozen=True, eq=False)
class _Band(Mask):
    """low <= j - i <= high, counted from the start of the box or from its end."""

    name: str
    low: int
    high: int
    to_end: bool = False

    def laid_into(self, boxes: Boxes) -> Slices:
        q0, q1, k0, k1 = boxes.T
        shift = k1 - q1 if self.to_end else k0 - q0
        return tighten(np.stack([q0, q1, k0, k1, self.low + shift, self.high + shift], 1))

    def allowed(self, query_length: int, key_length: int) -> NDArray[np.bool_]:
        distance = np.arange(key_length) - np.arange(query_length)[:, None]
        distance -= key_length - query_length if self.to_end else 0
        return np.asarray((distance >= self.low) & (distance <= self.high))

    def definition(self) -> list[Any]:
        return [self.name, self.low, self.high, self.to_end]

    def __str__(self) -> str:
        bounds = [
            f"{name}={'end' if self.to_end and value == 0 else value}"
            for name, value in (("low", self.low), ("high", self.high))
            if abs(value) < UNBOUNDED and (value != 0 or self.to_end or self.name == "window")
        ]
        return self.name + (f"({', '.join(bounds)})" if bounds else "")


@dataclass(frozen=True, eq=False)
class _Keys(Mask):
    """start <= j < stop."""

    start: int
    stop: int

    def laid_into(self, boxes: Boxes) -> Slices:
        q0, q1, k0, k1 = boxes.T
        first, last = np.minimum(k1, k0 + self.start), np.minimum(k1, k0 + self.stop)
        unbounded = np.full_like(q0, UNBOUNDED)
        return tighten(np.stack([q0, q1, first, last, -unbounded, unbounded], 1))

    def allowed(self, query_length: int, key_length: int) -> NDArray[np.bool_]:
        keys = np.arange(key_length)
        return np.broadcast_to((keys >= self.start) & (keys < self.stop), (query_length, key_length))

    def definition(self) -> list[Any]:
        return ["keys", self.start, self.stop]

    def __str__(self) -> str:
        return f"keys({self.start}, {self.stop})"


@dataclass(frozen=True, eq=False)
class _Documents(Mask):
    """Diagonal blocks of the given heights and widths, each filled by `within`."""

    q_lengths: NDArray[np.int64]
    k_lengths: NDArray[np.int64]
    within: Mask

    def laid_into(self, boxes: Boxes) -> Slices:
        q_ends, k_ends = np.cumsum(self.q_lengths), np.cumsum(self.k_lengths)
        self._check_sums("query", sum(self.q_lengths.tolist()), boxes[:, 1] - boxes[:, 0])
        self._check_sums("key", sum(self.k_lengths.tolist()), boxes[:, 3] - boxes[:, 2])
        inner = np.stack([q_ends - self.q_lengths, q_ends, k_ends - self.k_lengths, k_ends], 1)
        return self.within.laid_into((boxes[:, None, [0, 0, 2, 2]] + inner).reshape(-1, 4))

    @staticmethod
    def _check_sums(side: str, total: int, sizes: NDArray[np.int64]) -> None:
        if len(wrong := sizes[sizes != total]):
            raise MaskError(
                f"document {side} lengths sum to {total}, but the {side} length is {int(wrong[0])}; they must be "
                f"equal. Give one length per document, padding included."
            )

    def allowed(self, query_length: int, key_length: int) -> NDArray[np.bool_]:
        matrix = np.zeros((query_length, key_length), np.bool_)
        q = k = 0
        for height, width in zip(self.q_lengths.tolist(), self.k_lengths.tolist(), strict=True):
            matrix[q : q + height, k : k + width] = self.within.allowed(height, width)
            q, k = q + height, k + width
        return matrix

    def definition(self) -> list[Any]:
        return ["documents", _digest(self.q_lengths), _digest(self.k_lengths), self.within.definition()]

    def __str__(self) -> str:
        return f"documents({len(self.q_lengths):,}, within={self.within})"


@dataclass(frozen=True, eq=False)
class _UserSlices(Mask):
    """A union of slices given as a table."""

    rows: Slices

    def laid_into(self, boxes: Boxes) -> Slices:
        moved = (
            self.rows[None]
            + np.stack([boxes[:, c] for c in (0, 0, 2, 2)] + [boxes[:, 2] - boxes[:, 0]] * 2, 1)[:, None]
        )
        moved[..., :4:2] = np.maximum(moved[..., :4:2], boxes[:, None, ::2])
        moved[..., 1:4:2] = np.minimum(moved[..., 1:4:2], boxes[:, None, 1::2])
        return unite([tighten(moved.reshape(-1, 6))])

    def allowed(self, query_length: int, key_length: int) -> NDArray[np.bool_]:
        i, j = np.arange(query_length)[:, None], np.arange(key_length)
        matrix = np.zeros((query_length, key_length), np.bool_)
        for q0, q1, k0, k1, low, high in self.rows.tolist():
            matrix |= (i >= q0) & (i < q1) & (j >= k0) & (j < k1) & (j - i >= low) & (j - i <= high)
        return matrix

    def definition(self) -> list[Any]:
        return ["slices", _digest(self.rows)]

    def __str__(self) -> str:
        return f"slices({len(self.rows):,})"


@dataclass(frozen=True, eq=False)
class _Combined(Mask):
    """Intersection (&) or union (|); pairs in both masks count once."""

    symbol: Literal["&", "|"]
    left: Mask
    right: Mask

    def laid_into(self, boxes: Boxes) -> Slices:
        left, right = self.left.laid_into(boxes), self.right.laid_into(boxes)
        return intersect(left, right) if self.symbol == "&" else unite([left, right])

    def allowed(self, query_length: int, key_length: int) -> NDArray[np.bool_]:
        combine = np.logical_and if self.symbol == "&" else np.logical_or
        return np.asarray(combine(*(mask.allowed(query_length, key_length) for mask in (self.left, self.right))))

    def definition(self) -> list[Any]:
        return [self.symbol, self.left.definition(), self.right.definition()]

    def __str__(self) -> str:
        return f"({self.left} {self.symbol} {self.right})"


def _parted(offset: Offset) -> tuple[int, bool]:
    """An offset as (whole number, counted from the end?)."""
    if isinstance(offset, str) and offset == "end":
        return 0, True
    if (shift := whole_number(offset)) is None:
        raise MaskError(f"offset {offset!r}; it must be a whole number from -2^53 to 2^53, or 'end'.")
    return shift, False


def _reach(side: str, reach: int) -> int:
    """How far a window goes to one side."""
    if (positions := whole_number(reach, 0)) is None:
        raise MaskError(f"window {side} = {reach!r}; it must be a whole number from 0 to 2^53, or None for no bound.")
    return positions


def _lengths(name: str, lengths: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
    array = np.asarray(lengths)
    whole = array.ndim == 1 and (array.size == 0 or array.dtype.kind in "iu")
    if not whole or (array < 0).any() or (array > LARGEST_POSITION).any():
        raise MaskError(f"{name} must be a list of whole numbers, each from 0 to 2^53; found {array!r}.")
    return array.astype(np.int64)


def _digest(array: NDArray[np.int64]) -> str:
    return hashlib.blake2b(array.astype("<i8").tobytes(), digest_size=16).hexdigest() + f"/{array.shape}"
