"""The one place that says how arrays are laid out: `[heads, length, head_dim]`, with an optional leading batch axis.

Inside ringmpi every array carries the batch axis: `[batch, heads, length, head_dim]`. Query head h uses key head
h // (query_heads // key_heads) (grouped heads). Values may have another head_dim than queries and keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ringmpi.errors import ShapeError

LENGTH_AXIS = -2


@dataclass(frozen=True)
class HeadShape:
    """What all ranks share: everything of q, k, v but the lengths. value_dim is 0 where there are no values."""

    batch: int
    query_heads: int
    key_heads: int
    head_dim: int
    value_dim: int

    @property
    def group(self) -> int:
        """Query heads that share one key head."""
        return self.query_heads // self.key_heads

    @property
    def query_slabs(self) -> int:
        """Independent attention problems: batch x query heads. A kernel attends to every pair once in each."""
        return self.batch * self.query_heads

    def doubts(self, queries: int, keys: int) -> list[str]:
        """A sentence where so many queries and keys make the shape one that is hardly meant.

        Few queries alone do not: a token attends to all before it.
        """
        positions = max(queries, keys)
        if not max(self.query_heads, self.head_dim) > positions > 0:
            return []
        return [
            f"{self.query_heads:,} query heads, {positions:,} positions, head_dim {self.head_dim:,}: arrays are "
            f"[heads, length, head_dim]; are axes swapped?"
        ]


def with_batch(array: Any) -> Any:
    """`[heads, length, dim]` seen as `[1, heads, length, dim]`; arrays with a batch axis as they are."""
    return array[None] if array.ndim == 3 else array


def head_shape(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...] | None = None) -> HeadShape:
    """The HeadShape of q, k, v by their full shapes; ShapeError names the first thing that does not fit.

    value : None where there are no values.
    """
    if value is None:
        if len(query) != len(key):
            raise ShapeError(
                f"query and key have {len(query)} and {len(key)} axes; both need the batch axis, or neither."
            )
        return replace(head_shape(query, key, key), value_dim=0)
    for name, shape in (("query", query), ("key", key), ("value", value)):
        if len(shape) not in (3, 4):
            raise ShapeError(
                f"{name} has {len(shape)} axes {tuple(shape)}; expected [heads, length, head_dim] "
                f"or [batch, heads, length, head_dim]. Add or remove axes with reshape."
            )
    if not len(query) == len(key) == len(value):
        raise ShapeError(
            f"query, key and value have {len(query)}, {len(key)} and {len(value)} axes; "
            f"all three need the batch axis, or none."
        )
    q, k, v = ((1,) * (4 - len(shape)) + tuple(shape) for shape in (query, key, value))
    if not q[0] == k[0] == v[0]:
        raise ShapeError(f"batch sizes differ: query {q[0]}, key {k[0]}, value {v[0]}; they must be equal.")
    if k[1] != v[1]:
        raise ShapeError(f"key has {k[1]} heads and value {v[1]}; they must be equal.")
    if k[2] != v[2]:
        raise ShapeError(f"key has length {k[2]} and value {v[2]}; they must be equal.")
    if q[3] != k[3]:
        raise ShapeError(f"query has head_dim {q[3]} and key {k[3]}; they must be equal (value may differ).")
    if min(q[0], q[1], k[1], q[3], v[3]) < 1:
        raise ShapeError(f"query {q}, key {k}, value {v}: batch, heads and head_dim must be at least 1.")
    if q[1] % k[1]:
        raise ShapeError(
            f"{q[1]} query heads do not divide into groups for {k[1]} key heads; "
            f"query heads must be a multiple of key heads."
        )
    return HeadShape(batch=q[0], query_heads=q[1], key_heads=k[1], head_dim=q[3], value_dim=v[3])
