"""Which positions of the sequence lie on which rank: the one file that knows layouts.

A shard is a few `range`s of global positions, ascending. Everything else (masks, work, files) reads the ranges, so
a new layout is one function here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ringmpi.core.masking import Mask
from ringmpi.core.ranges import positions_of
from ringmpi.core.shapes import LENGTH_AXIS
from ringmpi.core.slices import row_counts, total_pairs
from ringmpi.core.whole_numbers import whole_number
from ringmpi.errors import ShapeError

Shard = tuple[range, ...]
NAMES = ("contiguous", "zigzag", "striped", "balanced", "auto")
BLOCK = 512  # positions of a block, where blocks are needed and nobody has said how long


def default_block(*, reproducible: bool) -> int:
    """How many positions stay together where nobody has said it."""
    return BLOCK if reproducible else 1


LONGEST_COUNTED = 1 << 28  # rows: 2 GiB of counts
SPARSE = 0.25  # of all pairs: below it "auto" prefers shards whose neighbours meet to shards of equal triangles


class HasRank(Protocol):
    """A ring: `rank` is the position in the ring, which decides ownership."""

    @property
    def rank(self) -> int:
        """Position in the ring."""
        ...


@dataclass(frozen=True)
class Sharding:
    """Which positions each ring position owns; every position of 0..length-1 has one owner.

    Attributes
    ----------
    name : str
    length : int
        Positions in the whole sequence.
    shards : tuple of tuples of range
        One tuple per rank; empty where a rank owns nothing.
    block : int
        Every cut is at a multiple of it: shards consist of whole blocks of that many positions (1: of positions).
    """

    name: str
    length: int
    shards: tuple[Shard, ...]
    block: int = 1

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.shards)

    @staticmethod
    def contiguous(length: int, size: int, *, block: int = 1) -> Sharding:
        """Rank r owns one run of positions, cut at floor(r L / P); `block`: cuts at multiples of it only."""
        length, size, block = _sizes(length, size, block)
        cuts = _cuts(length, size, block)
        return _sharding("contiguous", length, ([range(cuts[r], cuts[r + 1])] for r in range(size)), block)

    @staticmethod
    def zigzag(length: int, size: int, *, block: int = 1) -> Sharding:
        """2P runs cut at floor(c L / 2P); rank r owns runs r and 2P-1-r: equal work under a causal mask."""
        length, size, block = _sizes(length, size, block)
        cuts = _cuts(length, 2 * size, block)
        runs = [range(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
        return _sharding("zigzag", length, ([runs[r], runs[2 * size - 1 - r]] for r in range(size)), block)

    @staticmethod
    def striped(length: int, size: int, *, block: int = 1) -> Sharding:
        """Rank r owns positions r, r + P, r + 2P, ... (Brandon et al. 2023), or blocks of positions likewise."""
        length, size, block = _sizes(length, size, block)
        if block == 1:
            return _sharding("striped", length, ([range(r, length, size)] for r in range(size)))
        starts = range(0, length, block)
        shards = ([range(start, min(start + block, length)) for start in starts[r::size]] for r in range(size))
        return _sharding("striped", length, shards, block)

    @staticmethod
    def balanced(mask: Mask, size: int, *, length: int, key_length: int | None = None, block: int = 1) -> Sharding:
        """Runs of positions such that every rank attends to the same number of pairs, by exact counts.

        `length` counts queries, `key_length` keys (default: as many). Good for windows and documents: neighbours
        in the sequence stay on one rank, so few pieces travel.
        """
        length, size, block = _sizes(length, size, block)
        if length > LONGEST_COUNTED:
            raise ShapeError(
                f"balanced counts row by row, up to {LONGEST_COUNTED:,} rows; found {length:,}: use zigzag."
            )
        keys = length if key_length is None else _sizes(key_length, size, block)[0]
        slices = mask.resolve(length, keys)
        total = total_pairs(slices)
        if total == 0:
            return Sharding.contiguous(length, size, block=block)
        done = np.cumsum(row_counts(slices, length))
        inner = [int(np.searchsorted(done, rank * total // size)) + 1 for rank in range(1, size)]
        cuts = [0, *(min(length, -(-cut // block) * block) for cut in inner), length]
        return _sharding("balanced", length, ([range(cuts[r], cuts[r + 1])] for r in range(size)), block)

    @staticmethod
    def from_ranges(length: int, shards: Iterable[Iterable[range]], *, block: int = 1) -> Sharding:
        """Any layout: for each rank its ranges, ascending, steps > 0. Every position must have exactly one owner.

        `block`: the ranges are made of whole blocks of so many positions, and that is checked.
        """
        length, _, block = _sizes(length, 1, block)
        sharding = _sharding("custom", length, shards, block)
        owners = np.zeros(length, np.int8)
        for rank, shard in enumerate(sharding.shards):
            for part in shard:
                if part.step < 1 or part.start < 0 or part[-1] >= length:
                    raise ShapeError(f"rank {rank} owns {part}; expected positions 0 to {length - 1}, step > 0.")
                if block > 1 and (part.step > 1 or part.start % block or (part.stop % block and part.stop != length)):
                    raise ShapeError(
                        f"rank {rank} owns {part}, which is not made of whole blocks of {block} positions; begin and "
                        f"end ranges at multiples of {block}, or at the end of the sequence, step 1."
                    )
                owners[part.start : part.stop : part.step] += 1
            if any(a[-1] >= b[0] for a, b in zip(shard, shard[1:], strict=False)):
                raise ShapeError(f"the ranges of rank {rank} are {shard}; each must end before the next begins.")
        if (wrong := np.flatnonzero(owners != 1)).size:
            first = int(wrong[0])
            raise ShapeError(f"position {first} has {int(owners[first])} owners; every position needs exactly one.")
        return sharding

    def check_blocks(self, of: str) -> None:
        """ShapeError unless the cuts lie between blocks, which are then the same on any number of ranks."""
        if self.block == 1:
            raise ShapeError(
                f"the sharding of {of} ({self.name}) may be cut between any two positions; reproducible needs whole "
                f"blocks, of the same length on any number of ranks. Make it with block = {BLOCK} or another number: "
                f"Sharding.zigzag({self.length}, {self.size}, block={BLOCK})."
            )

    def positions(self, rank: int) -> NDArray[np.int64]:
        """Global positions of `rank` in local order, int64."""
        return positions_of(self.shards[rank])

    def shard_length(self, rank: int) -> int:
        """Number of positions of `rank`."""
        return sum(map(len, self.shards[rank]))

    def take(self, array: NDArray[Any], ring: HasRank) -> NDArray[Any]:
        """The shard of this rank of a whole array `[..., length, dim]`, contiguous. Placement decides who owns what."""
        return self.select(array, ring.rank)

    def select(self, array: NDArray[Any], rank: int) -> NDArray[Any]:
        """The shard of ring position `rank` of a whole array `[..., length, dim]`, contiguous.

        A copy, except for a contiguous array that belongs to one rank as a whole: that is returned as it is.
        """
        if array.ndim < 2 or array.shape[LENGTH_AXIS] != self.length:
            raise ShapeError(
                f"an array has shape {array.shape}; it needs {self.length} positions on its second-to-last axis."
            )
        if self.shard_length(rank) == self.length:
            return np.ascontiguousarray(array)
        parts = [array[..., part.start : part.stop : part.step, :] for part in self.shards[rank]]
        return np.concatenate([array[..., :0, :], *parts], axis=LENGTH_AXIS)

    def put(self, whole: NDArray[Any], shard: NDArray[Any], rank: int) -> None:
        """Write the shard of `rank` into its rows of `whole`, both `[batch, heads, length, ...]`."""
        done = 0
        for part in self.shards[rank]:
            whole[:, :, part.start : part.stop : part.step] = shard[:, :, done : done + len(part)]
            done += len(part)

    def fingerprint(self) -> str:
        """Hash of who owns what, and of the blocks."""
        ranges = [[(part.start, part.stop, part.step) for part in shard] for shard in self.shards]
        return hashlib.blake2b(repr((self.length, ranges, self.block)).encode(), digest_size=16).hexdigest()


def shardings_by_name(
    name: str, mask: Mask, query_length: int, key_length: int, size: int, *, block: int = 1
) -> tuple[Sharding, Sharding]:
    """Query and key sharding of a name, each at its own length, both of whole blocks.

    "balanced" balances the queries; keys follow the same cuts where both are equally long, else they are contiguous.
    "auto" is balanced where the mask allows less than a quarter of all pairs (windows, documents), else zigzag.
    """
    if name == "auto":
        sparse = mask.pairs(query_length, key_length) < SPARSE * query_length * key_length
        name = "balanced" if sparse else "zigzag"
    if name == "balanced":
        queries = Sharding.balanced(mask, size, length=query_length, key_length=key_length, block=block)
        keys = queries if query_length == key_length else Sharding.contiguous(key_length, size, block=block)
        return queries, keys
    plain = {"contiguous": Sharding.contiguous, "zigzag": Sharding.zigzag, "striped": Sharding.striped}
    if name not in plain:
        raise ShapeError(f"sharding {name!r} is unknown; choose one of {', '.join(NAMES)}, or a Sharding.")
    return plain[name](query_length, size, block=block), plain[name](key_length, size, block=block)


def _sharding(name: str, length: int, shards: Iterable[Iterable[range]], block: int = 1) -> Sharding:
    return Sharding(name, length, tuple(tuple(part for part in shard if len(part)) for shard in shards), block)


def _sizes(length: int, size: int, block: int) -> tuple[int, int, int]:
    """The same as ints; ShapeError where they are no sizes."""
    positions, ranks, together = whole_number(length, 0), whole_number(size, 1), whole_number(block, 1)
    if positions is None or ranks is None or together is None:
        raise ShapeError(
            f"length {length!r} on {size!r} ranks, block {block!r}: expected whole numbers, length >= 0, ranks and "
            f"block >= 1, at most 2^53."
        )
    return positions, ranks, together


def _cuts(length: int, parts: int, block: int) -> Sequence[int]:
    """Parts + 1 cut positions, floor(c L / parts) rounded to whole blocks."""
    blocks = -(-length // block)
    return [min(length, c * blocks // parts * block) for c in range(parts + 1)]
