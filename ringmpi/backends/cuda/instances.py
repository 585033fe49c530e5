"""Which kernels there are: an instance for each dtype and width, made from the templates in kernels/."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringmpi.core.dtypes import SUPPORTED, accumulate_dtype, bfloat16, native
from ringmpi.core.shapes import HeadShape
from ringmpi.errors import BackendError

WARPS = 4  # of a block of threads, as in kernels/tile.cuh
WIDTHS = ((32, 32), (64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256))  # of q and k, and of v
_ELEMENTS = dict(zip(SUPPORTED, ("ringmpi::Float16", "ringmpi::BFloat16", "float", "double"), strict=True))
_EXACT_TERMS = {np.dtype(np.float16): 2, bfloat16: 3, np.dtype(np.float32): 1, np.dtype(np.float64): 1}
PARTS = {
    "query": (False, True, False),
    "keys": (True, True, True),
    "key": (True, True, False),
    "value": (True, False, True),
}


@dataclass(frozen=True)
class Instance:
    """One compiled kernel.

    Attributes
    ----------
    part : str
        "output" (forward), or whose gradients it gives: "query", "keys" (key and value), "key", "value".
    dtype : dtype
        Of q, k and v.
    head_dim, value_dim : int
        Widths in shared memory; the arrays may be narrower.
    rows : int
        Of a thread. A block stands for 8 x WARPS as many rows (of queries, or keys).
    tile : int
        Keys (or rows) that visit at a time.
    stages : int
        Visiting tiles in shared memory; of no meaning forward.
    terms : int
        16-bit numbers that a weight is written as the sum of: 1 rounds it, more keep it.
    extras : bool
        Whether it knows softcap, ALiBi, dropout, NaN and inf.
    """

    part: str
    dtype: np.dtype
    head_dim: int
    value_dim: int
    rows: int
    tile: int
    stages: int
    terms: int
    extras: bool

    @property
    def source(self) -> str:
        """The file in kernels/ with its template."""
        return "forward.cuh" if self.part == "output" else "backward.cuh"

    @property
    def name(self) -> str:
        """The C++ expression that names it."""
        arguments: list[int | bool] = [self.head_dim, self.value_dim, self.rows, self.tile]
        if self.part == "output":
            arguments += [self.terms, self.extras]
        else:
            arguments += [self.stages, self.terms, self.extras, *PARTS[self.part]]
        template = self.source.removesuffix(".cuh")
        return f"ringmpi::{template}<{_ELEMENTS[self.dtype]}, {', '.join(str(x).lower() for x in arguments)}>"

    @property
    def label(self) -> str:
        """The same, to read: output-float16-64x64-extras."""
        weights = "-rounded" if self.terms < _EXACT_TERMS[self.dtype] else ""
        return f"{self.part}-{self.dtype}-{self.head_dim}x{self.value_dim}{weights}{'-extras' * self.extras}"

    @property
    def block_rows(self) -> int:
        """Rows that a block of threads stands for."""
        return 8 * self.rows * WARPS

    @property
    def shared_bytes(self) -> int:
        """What kernels/forward.cuh and backward.cuh lay out there."""
        seen, flags = 8 * self.block_rows, 4 * self.tile
        if self.part == "output":
            elements = (self.block_rows + self.tile) * self.head_dim + self.tile * self.value_dim
            return elements * self.dtype.itemsize + seen + flags
        visiting = self.stages * self.tile
        elements = (self.block_rows + visiting) * (self.head_dim + self.value_dim)
        numbers = 2 * visiting * accumulate_dtype(self.dtype).itemsize
        return elements * self.dtype.itemsize + numbers + 2 * seen + flags


def forward_instance(dtype: np.dtype, heads: HeadShape, *, extras: bool, rounded: bool) -> Instance:
    """The narrowest one for some heads.

    Parameters
    ----------
    dtype : dtype
        Of q, k and v.
    heads : HeadShape
    extras : bool
        Whether softcap, ALiBi, dropout, NaN or inf are there. An instance that knows them does not round.
    rounded : bool
        Weights may be rounded to 16 bit before they meet values: faster, and off by more than sums in float32 are.

    Raises
    ------
    BackendError
        If no instance is wide enough.
    """
    return _make("output", native(dtype), _widths(heads), extras=extras, rounded=rounded)


def backward_instances(dtype: np.dtype, heads: HeadShape, *, extras: bool, rounded: bool) -> dict[str, Instance]:
    """Those that give the gradients, by their part: "query", and "keys" or "key" and "value". As `forward_instance`."""
    widths = _widths(heads)
    parts = _parts(native(dtype), widths)
    return {part: _make(part, native(dtype), widths, extras=extras, rounded=rounded) for part in parts}


def every_instance() -> tuple[Instance, ...]:
    """All that there are."""
    made = (
        _make(part, dtype, widths, extras=extras, rounded=rounded)
        for dtype in SUPPORTED
        for widths in WIDTHS
        for part in ("output", *_parts(dtype, widths))
        for extras, rounded in ((False, False), (False, True), (True, False))
    )
    return tuple(dict.fromkeys(made))


def _widths(heads: HeadShape) -> tuple[int, int]:
    for widths in WIDTHS:
        if heads.head_dim <= widths[0] and heads.value_dim <= widths[1]:
            return widths
    raise BackendError(
        f"head_dim is {heads.head_dim} and value_dim {heads.value_dim}; the CUDA kernels go up to {WIDTHS[-1][0]}. "
        f'Use backend "native".'
    )


def _parts(dtype: np.dtype, widths: tuple[int, int]) -> tuple[str, ...]:
    """Gradients of keys and values in one go where both fit into registers."""
    together = max(widths) * dtype.itemsize <= MOST_TOGETHER[dtype.itemsize]
    return ("query", "keys") if together else ("query", "key", "value")


def _make(part: str, dtype: np.dtype, widths: tuple[int, int], *, extras: bool, rounded: bool) -> Instance:
    plain = not extras and dtype.itemsize == 2 and (part == "output" or rounded)
    size = SIZES[part == "output"][dtype.itemsize][max(widths)]
    terms = 1 if plain and rounded else _EXACT_TERMS[dtype]
    rows = min(size.rows, 4 if plain else 2, 4 if terms == 1 else size.exact_rows)
    return Instance(part, dtype, *widths, rows, size.tile, size.stages, terms, extras=not plain)


@dataclass(frozen=True)
class Size:
    """Rows of a thread, length and number of visiting tiles.

    With extras there are at most 2 rows, with weights of several terms at most `exact_rows`.
    """

    rows: int
    tile: int
    stages: int = 1
    exact_rows: int = 4


# By forward or not, bytes of an element, and width: what fits into 255 registers of a thread without spills, and into
# 163 KiB of shared memory. A tile is as long with and without extras, as bits depend on it.
SIZES = {
    True: {
        2: {
            32: Size(4, 64),
            64: Size(4, 64),
            96: Size(4, 64),
            128: Size(4, 32, exact_rows=2),
            192: Size(2, 32),
            256: Size(2, 16),
        },
        4: {32: Size(2, 32), 64: Size(2, 32), 96: Size(2, 32), 128: Size(2, 32), 192: Size(2, 16), 256: Size(2, 16)},
        8: {32: Size(2, 32), 64: Size(2, 32), 96: Size(2, 16), 128: Size(1, 16), 192: Size(1, 16), 256: Size(1, 16)},
    },
    False: {
        2: {w: Size(2, 32, 2) for w in (32, 64, 96, 128)} | {w: Size(2, 16) for w in (192, 256)},
        4: {w: Size(2, 16, 2) for w in (32, 64, 96, 128)} | {w: Size(1, 16) for w in (192, 256)},
        8: {w: Size(1, 16, 2) for w in (32, 64, 96, 128)} | {w: Size(1, 8) for w in (192, 256)},
    },
}
MOST_TOGETHER = {2: 2 * 64, 4: 4 * 32, 8: 8 * 64}  # bytes of a row
