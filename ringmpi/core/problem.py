"""One attention problem, as all ranks share it: shapes, mask, shardings, schedule, scores. No arrays, no messages."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ringmpi.core.absorbed import rest_of
from ringmpi.core.dropout import check_dropout, check_seed
from ringmpi.core.dtypes import accumulate_dtype, check_dtype
from ringmpi.core.given_numbers import given_number, given_numbers
from ringmpi.core.masking import Mask
from ringmpi.core.pair_counts import PairCounter
from ringmpi.core.record import Recording
from ringmpi.core.schedule import Piece, Schedule, cut_pieces, schedule_by_name
from ringmpi.core.scoring import Scoring
from ringmpi.core.shapes import HeadShape, head_shape
from ringmpi.core.sharding import Sharding
from ringmpi.core.slices import Slices, total_pairs
from ringmpi.errors import ShapeError


class HasShape(Protocol):
    """An array, or a dataset of a file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[(batch,) heads, length, dim]."""
        ...

    @property
    def dtype(self) -> np.dtype:
        """Of the numbers."""
        ...


@dataclass(frozen=True)
class Problem:
    """Everything that decides what is computed where. Equal on all ranks: `fingerprint` proves it before work.

    Attributes
    ----------
    sink_logits : float64 [query_heads] or None
    reproducible : bool
        Equal bits on any number of ranks: shards are made of whole blocks, which all ranks meet in ascending order.
    absorbed : int64 [n, 6] or None
        Slices that a run before this one has attended to; they are no work any more. None: nothing yet.
    record : Recording or None
        What the forward pass records of its rows.
    """

    heads: HeadShape
    dtype: np.dtype
    mask: Mask
    queries: Sharding
    keys: Sharding
    schedule: Schedule
    scoring: Scoring
    sink_logits: NDArray[np.float64] | None = None
    reproducible: bool = False
    absorbed: Slices | None = None
    record: Recording | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be computed."""
        if self.queries.size != self.keys.size:
            raise ShapeError(
                f"queries are sharded over {self.queries.size} ranks, keys over {self.keys.size}; both must use "
                f"the same number."
            )
        if not (math.isfinite(self.scoring.scale)):
            raise ShapeError(f"scale is {self.scoring.scale}; it must be finite.")
        if self.scoring.softcap is not None and not 0 < self.scoring.softcap < math.inf:
            raise ShapeError(f"softcap is {self.scoring.softcap}; it must be above 0 and finite, or None for no cap.")
        check_dropout(self.scoring.dropout, max(self.queries.length, self.keys.length))
        for name, array in (("sink_logits", self.sink_logits), ("alibi_slopes", self.scoring.alibi_slopes)):
            if array is not None and array.shape != (self.heads.query_heads,):
                raise ShapeError(
                    f"{name} has shape {array.shape}; expected one number per query head: ({self.heads.query_heads},)."
                )
            least = -math.inf if name == "sink_logits" else -sys.float_info.max  # a sink of -inf is none
            if array is not None and not ((array >= least) & (array < math.inf)).all():
                raise ShapeError(
                    f"{name} holds {array.tolist()}; NaN and inf are not allowed. Give finite numbers"
                    f"{' (or -inf for a head without a sink)' if name == 'sink_logits' else ''}."
                )
        self._check_range()
        if self.reproducible:
            self._check_blocks()

    def _check_blocks(self) -> None:
        """Refuse what would make the order of sums depend on the number of ranks."""
        if not self.schedule.in_order:
            raise ShapeError(
                f"schedule {self.schedule.name!r} meets keys in an order that depends on the rank; reproducible needs "
                f'"broadcast". Leave schedule out.'
            )
        self.queries.check_blocks("queries")
        self.keys.check_blocks("keys")

    def _check_range(self) -> None:
        """Refuse numbers that the accumulation dtype cannot hold: NaN would come out, from finite input."""
        dtype = accumulate_dtype(self.dtype)
        end = float(np.finfo(dtype).max)
        slopes, sinks = self.scoring.alibi_slopes, self.sink_logits
        largest = {
            "scale": abs(self.scoring.scale),
            "softcap": self.scoring.softcap or 0.0,
            "1 / softcap": 1 / (self.scoring.softcap or 1.0),
            "alibi_slopes times the length": 0.0 if slopes is None else float(np.abs(slopes).max()) * self._longest,
            "sink_logits": 0.0 if sinks is None else float(np.abs(sinks[~np.isneginf(sinks)]).max(initial=0.0)),
        }
        for name, size in largest.items():
            if size > end:
                raise ShapeError(f"{name} reaches {size:.3g}; scores are {dtype}, which overflows above {end:.3g}.")

    @property
    def _longest(self) -> int:
        return max(self.queries.length, self.keys.length, 1)

    @property
    def size(self) -> int:
        """Ranks in the ring."""
        return self.keys.size

    @property
    def schedule_in_words(self) -> str:
        """Its name, and what is asked of it."""
        return f"{self.schedule.name}, reproducible" if self.reproducible else self.schedule.name

    def without(self, absorbed: Slices | None) -> Problem:
        """What is left of it once some slices have been attended to."""
        if absorbed is None:
            return self
        return self.with_same_mask(absorbed=absorbed)

    def with_same_mask(self, **changes: Any) -> Problem:
        """With other fields than these, of the same mask and lengths: the mask is not resolved again."""
        other = replace(self, **changes)
        vars(other)["whole_mask"] = self.whole_mask  # a cached_property; the instance is frozen for all others
        return other

    @cached_property
    def slices(self) -> Slices:
        """What is to be attended to: the mask, resolved, without what has been absorbed."""
        return self.whole_mask if self.absorbed is None else rest_of(self.whole_mask, self.absorbed)

    @cached_property
    def whole_mask(self) -> Slices:
        """The mask, resolved."""
        return self.mask.resolve(self.queries.length, self.keys.length)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """What travels."""
        return cut_pieces(self.keys, self.schedule)

    @cached_property
    def query_pieces(self) -> tuple[Piece, ...]:
        """What travels when queries do."""
        return cut_pieces(self.queries, self.schedule)

    @property
    def pairs_asked(self) -> int:
        """Pairs of the mask, over batch and query heads: what all kernels together must attend to."""
        return total_pairs(self.whole_mask) * self.heads.query_slabs

    @cached_property
    def pair_counter(self) -> PairCounter:
        """Counts pairs of any query positions with each piece."""
        return PairCounter(self.slices, [piece.ranges for piece in self.pieces])

    def meaning(self) -> str:
        """Hash of what is computed, in whatever place and order: a backward pass must mean what its forward meant."""
        sinks = None if self.sink_logits is None else self.sink_logits.tolist()
        slopes = None if self.scoring.alibi_slopes is None else self.scoring.alibi_slopes.tolist()
        dropped = (self.scoring.dropout, self.scoring.seed) if self.scoring.dropout else None
        scores = (self.scoring.scale, self.scoring.softcap, slopes, sinks, dropped)
        return _hash(self.heads, str(self.dtype), self.mask.fingerprint(), scores)

    def fingerprint(self) -> str:
        """Hash of all that must be equal on all ranks."""
        absorbed = None if self.absorbed is None else hashlib.blake2b(self.absorbed.tobytes()).hexdigest()
        shardings = self.queries.fingerprint(), self.keys.fingerprint()
        return _hash(self.meaning(), *shardings, self.schedule_in_words, absorbed, self.record)

    def doubts(self) -> list[str]:
        """What can be computed, but is hardly meant; one sentence each."""
        queries = self.queries.length
        found = self.heads.doubts(queries, self.keys.length)
        if self.pairs_asked == 0:
            found.append("the mask allows no pair: all output will be 0, log_sum_exp -inf")
        if queries < self.size:
            found.append(f"{queries:,} queries on {self.size:,} ranks: some ranks have none")
        return found


def _hash(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


class ProblemOptions(TypedDict, total=False):
    """What a user may say of scores (see `Scoring`; scale defaults to 1 / sqrt(head_dim)), of bits, of the record."""

    scale: float | None
    softcap: float | None
    alibi_slopes: ArrayLike | None
    sink_logits: ArrayLike | None
    dropout: float
    seed: int
    reproducible: bool
    record: Recording | None


def pose_problem(
    arrays: Sequence[HasShape],
    *,
    mask: Mask,
    queries: Sharding,
    keys: Sharding,
    schedule: str = "auto",
    **options: Unpack[ProblemOptions],
) -> Problem:
    """The Problem of (query, key, value) arrays, of which only shapes and dtypes matter, with defaults filled in.

    Without a value, its `value_dim` is 0.

    Raises
    ------
    ShapeError
        If shapes, dtypes, shardings or options do not fit together.
    """
    heads = head_shape(*(array.shape for array in arrays))
    reproducible = bool(options.get("reproducible", False))
    scale, softcap = options.get("scale"), options.get("softcap")
    return Problem(
        heads=heads,
        dtype=_one_dtype(arrays),
        mask=mask,
        queries=queries,
        keys=keys,
        schedule=schedule_by_name(schedule, in_order=reproducible),
        scoring=Scoring(
            scale=1 / math.sqrt(heads.head_dim) if scale is None else given_number("scale", scale),
            softcap=None if softcap is None else given_number("softcap", softcap),
            alibi_slopes=_numbers("alibi_slopes", options.get("alibi_slopes")),
            dropout=given_number("dropout", options.get("dropout", 0)),
            seed=check_seed(options.get("seed", 0)),
        ),
        sink_logits=_numbers("sink_logits", options.get("sink_logits")),
        reproducible=reproducible,
        record=options.get("record"),
    )


def _one_dtype(arrays: Sequence[HasShape]) -> np.dtype:
    """The dtype of all."""
    dtypes = [check_dtype(name, array.dtype) for name, array in zip(("query", "key", "value"), arrays, strict=False)]
    found = ", ".join(map(str, dtypes))
    if len(set(dtypes)) > 1 and len(arrays) == 2:
        raise ShapeError(f"query and key have dtypes {found}; all must be the same.")
    if len(set(dtypes)) > 1:
        raise ShapeError(f"query, key and value have dtypes {found}; all must be the same.")
    return dtypes[0]


def _numbers(name: str, values: ArrayLike | None) -> NDArray[np.float64] | None:
    return None if values is None else given_numbers(name, values)
