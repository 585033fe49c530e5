"""What contenders are asked: arrays by seed, a mask in words, options. Needs NumPy alone, as peers may have no more.

A mask is "full", "causal", "causal-end" (the last query sees the last key), "window:W" (itself and W before it),
"documents:N" (N documents of equal length, causal inside), "lengths:3+2+3/4+0+4" (documents by the lengths of queries
and keys, all of it inside) or "hole:ROW,KEY" (all but one pair).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
CASE_MASK = re.compile(r"full|causal|window:\d+|documents:[1-9]\d*")
SHAPE = re.compile(r"([1-9]\d*)(?:/([1-9]\d*))?x([1-9]\d*)x([1-9]\d*)")
BACKWARD_WORK = 2.5  # five matrix products where the forward pass has two


@dataclass(frozen=True)
class Question:
    """One problem.

    q, k, v, grad_output  [heads, length, dim] float64 for "float64", else float32, rounded to what `dtype` can hold
    dtype                 "float16", "bfloat16", "float32" or "float64": what the contender is to work on
    sink_logits, alibi_slopes  float64 [query_heads]
    """

    q: Array
    k: Array
    v: Array
    grad_output: Array
    dtype: str = "float32"
    mask: str = "full"
    softcap: float | None = None
    sink_logits: Array | None = None
    alibi_slopes: Array | None = None

    @property
    def group(self) -> int:
        """Query heads that share one key head."""
        return len(self.q) // len(self.k)

    @property
    def lengths(self) -> tuple[int, int]:
        """Of queries and keys."""
        return self.q.shape[1], self.k.shape[1]

    def allowed(self) -> Array:
        """The mask written out, bool [queries, keys]."""
        return allowed(self.mask, *self.lengths)


@dataclass(frozen=True)
class Case:
    """A problem with queries and keys of one length, by its sizes."""

    query_heads: int
    key_heads: int
    length: int
    head_dim: int
    mask: str = "full"
    dtype: str = "float32"
    backward: bool = False

    @property
    def shape(self) -> str:
        """As `parse_shape` reads it."""
        heads = f"{self.query_heads}/{self.key_heads}" if self.key_heads != self.query_heads else f"{self.query_heads}"
        return f"{heads}x{self.length}x{self.head_dim}"

    def flops(self, pairs: int) -> float:
        """4 heads pairs head_dim, or 2.5 times that for the backward pass alone; `pairs` are those of the mask."""
        return 4.0 * self.query_heads * pairs * self.head_dim * (BACKWARD_WORK if self.backward else 1)

    def question(self) -> Question:
        """Standard normal numbers, the same in every process."""
        rng = np.random.default_rng([self.length, self.head_dim, self.query_heads])
        queries, keys = ((heads, self.length, self.head_dim) for heads in (self.query_heads, self.key_heads))
        arrays = (rng.standard_normal(shape, np.float32) for shape in (queries, keys, keys, queries))
        q, k, v, grad_output = (rounded(array, self.dtype) for array in arrays)
        return Question(q, k, v, grad_output, self.dtype, self.mask)


def parse_shape(text: str) -> tuple[int, int, int, int]:
    """Query heads, key heads, length, head_dim of "8x4096x64" or "8/2x4096x64".

    Raises
    ------
    ValueError
        If it is neither.
    """
    found = SHAPE.fullmatch(text.strip())
    if not found or int(found[1]) % int(found[2] or found[1]):
        raise ValueError(
            f"shape {text!r}: expected HEADSxLENGTHxDIM or QUERY_HEADS/KEY_HEADSxLENGTHxDIM, as in 8/2x4096x64; "
            f"query heads must be a multiple of key heads."
        )
    return int(found[1]), int(found[2] or found[1]), int(found[3]), int(found[4])


def check_mask(text: str) -> str:
    """`text` if it is a mask for a Case; else ValueError."""
    if not CASE_MASK.fullmatch(text):
        raise ValueError(f"mask {text!r} is unknown; choose full, causal, window:W or documents:N.")
    return text


def rounded(array: Array, dtype: str) -> Array:
    """The nearest numbers that `dtype` holds, as float32 (float64 for "float64")."""
    if dtype == "bfloat16":  # round to nearest even, by hand: NumPy alone has no bfloat16
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
        kept: Array = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
        return np.where(np.isnan(array), np.float32(np.nan), kept)
    if dtype == "float64":
        return array.astype(np.float64)
    return array.astype(dtype).astype(np.float32)


def allowed(mask: str, queries: int, keys: int) -> Array:
    """A mask written out, bool [queries, keys]."""
    kind, _, rest = mask.partition(":")
    row, key = np.arange(queries)[:, None], np.arange(keys)[None, :]
    if kind in ("causal", "causal-end"):
        return np.asarray(key <= row + (keys - queries if kind == "causal-end" else 0))
    if kind == "window":
        return np.asarray((key <= row) & (key >= row - int(rest)))
    if kind == "documents":
        ends = np.cumsum(document_lengths(int(rest), queries))
        return np.asarray((key <= row) & (np.searchsorted(ends, row, "right") == np.searchsorted(ends, key, "right")))
    if kind == "lengths":
        of_query, of_key = (np.repeat(np.arange(len(part)), part) for part in parse_lengths(rest))
        return np.asarray(of_query[:, None] == of_key[None, :])
    whole = np.ones((queries, keys), bool)
    if kind == "hole":
        whole[tuple(map(int, rest.split(",")))] = False
    return whole


def document_lengths(count: int, length: int) -> list[int]:
    """`count` documents of nearly equal length."""
    edges = [length * nth // count for nth in range(count + 1)]
    return [stop - start for start, stop in zip(edges, edges[1:], strict=False)]


def parse_lengths(text: str) -> list[list[int]]:
    """Lengths of the documents of "3+2+3/4+0+4": of queries, and of keys."""
    return [[int(word) for word in side.split("+")] for side in text.split("/")]
