"""Which kernels there are: an instance for each dtype and width, made from the templates in kernels/."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringmpi.core.dtypes import SUPPORTED, accumulate_dtype, bfloat16, native
from ringmpi.core.shapes import HeadShape
from ringmpi.errors import BackendError

WARPS = 4  # of a block of threads, as in kernels/tile.cuh
WIDTHS = (32, 64, 96, 128, 192, 256)  # columns of q, k and v in shared memory
_ELEMENTS = dict(zip(SUPPORTED, ("ringmpi::Float16", "ringmpi::BFloat16", "float", "double"), strict=True))
_EXACT_TERMS = {np.dtype(np.float16): 2, bfloat16: 3, np.dtype(np.float32): 1, np.dtype(np.float64): 1}


@dataclass(frozen=True)
class Size:
    """Of blocks and tiles.

    Attributes
    ----------
    rows : int
        Of a thread. A block stands for 8 x WARPS as many rows (of queries, or keys).
    tile : int
        Keys (or rows) that visit at a time.
    blocks : int
        That find room on one multiprocessor: 65,536 registers are shared by 128 x blocks threads.
    stages : int
        Visiting tiles in shared memory; of no meaning forward.
    pair : bool
        Whether a thread has room for the gradients of its keys and of its values at once; of no meaning forward.
    """

    rows: int
    tile: int
    blocks: int = 2
    stages: int = 1
    pair: bool = False


@dataclass(frozen=True)
class Instance:
    """One compiled kernel.

    Attributes
    ----------
    part : str
        "output" (forward) or "gradient" (backward).
    dtype : dtype
        Of q, k and v.
    width : int
        Columns in shared memory; the arrays may be narrower.
    rounded : bool
        Whether weights are rounded to 16 bit before they meet 16-bit values. Such an instance knows no softcap, ALiBi,
        dropout, NaN or inf; every other one does.
    size : Size
    """

    part: str
    dtype: np.dtype
    width: int
    rounded: bool
    size: Size

    @property
    def source(self) -> str:
        """The file in kernels/ with its template."""
        return "forward.cuh" if self.part == "output" else "backward.cuh"

    @property
    def name(self) -> str:
        """The C++ expression that names it."""
        arguments: list[int | bool] = [self.width, self.size.rows, self.size.tile]
        if self.part == "gradient":
            arguments += [self.size.stages, self.size.pair]
        arguments += [self.terms, not self.rounded, self.size.blocks]
        template = self.source.removesuffix(".cuh")
        return f"ringmpi::{template}<{_ELEMENTS[self.dtype]}, {', '.join(str(x).lower() for x in arguments)}>"

    @property
    def label(self) -> str:
        """The same, to read: output-float16-64-rounded."""
        return f"{self.part}-{self.dtype}-{self.width}{'-rounded' * self.rounded}"

    @property
    def terms(self) -> int:
        """16-bit numbers that a weight is written as the sum of: 1 rounds it, more keep it."""
        return 1 if self.rounded else _EXACT_TERMS[self.dtype]

    @property
    def launches(self) -> tuple[str, ...]:
        """Whose result each launch gives, in their order; "keys" is key and value."""
        if self.part == "output":
            return ("output",)
        return ("query", "keys") if self.size.pair else ("query", "key", "value")

    @property
    def head_dim(self) -> int:
        """Columns of q and k in shared memory."""
        return self.width

    @property
    def value_dim(self) -> int:
        """Columns of v there."""
        return self.width

    @property
    def tile(self) -> int:
        """Keys (or rows) that visit at a time."""
        return self.size.tile

    @property
    def block_rows(self) -> int:
        """Rows that a block of threads stands for."""
        return 8 * self.size.rows * WARPS

    @property
    def shared_bytes(self) -> int:
        """What kernels/forward.cuh and backward.cuh lay out there."""
        row, flags = self.width * self.dtype.itemsize, 4 * self.tile
        if self.part == "output":
            return (self.block_rows + 2 * self.tile) * row + 8 * self.block_rows + flags
        visiting = self.size.stages * self.tile
        numbers = 2 * visiting * accumulate_dtype(self.dtype).itemsize
        return 2 * (self.block_rows + visiting) * row + numbers + 16 * self.block_rows + flags


def forward_instance(dtype: np.dtype, heads: HeadShape, *, extras: bool, rounded: bool) -> Instance:
    """The narrowest one for some heads.

    Parameters
    ----------
    dtype : dtype
        Of q, k and v.
    heads : HeadShape
    extras : bool
        Whether softcap, ALiBi, dropout, NaN or inf are there. Then nothing is rounded.
    rounded : bool
        Weights may be rounded to 16 bit before they meet values: faster, and off by more than sums in float32 are.

    Raises
    ------
    BackendError
        If no instance is wide enough.
    """
    return _make("output", native(dtype), _width(heads), rounded=rounded and not extras)


def backward_instance(dtype: np.dtype, heads: HeadShape, *, extras: bool, rounded: bool) -> Instance:
    """The one that gives the gradients, in one launch after the other (`Instance.launches`); as `forward_instance`."""
    return _make("gradient", native(dtype), _width(heads), rounded=rounded and not extras)


def every_instance() -> tuple[Instance, ...]:
    """All that there are."""
    return tuple(
        _make(part, dtype, width, rounded=rounded)
        for dtype in SUPPORTED
        for width in WIDTHS
        for part in ("output", "gradient")
        for rounded in (False, True)
        if dtype.itemsize == 2 or not rounded
    )


def _width(heads: HeadShape) -> int:
    widest = max(heads.head_dim, heads.value_dim)
    for width in WIDTHS:
        if widest <= width:
            return width
    raise BackendError(
        f"head_dim is {heads.head_dim} and value_dim {heads.value_dim}; the CUDA kernels go up to {WIDTHS[-1]}. "
        f'Use backend "native".'
    )


def _make(part: str, dtype: np.dtype, width: int, *, rounded: bool) -> Instance:
    rounded = rounded and dtype.itemsize == 2
    return Instance(part, dtype, width, rounded, SIZES[part, dtype.itemsize, rounded][width])


# By part, bytes of an element, and whether weights are rounded: what fits into the registers of a thread without
# spills, and into 163 KiB of shared memory a multiprocessor. docs/cuda-kernels.md has the arithmetic.
SIZES = {
    ("output", 2, True): {
        32: Size(4, 64, 2),
        64: Size(4, 64, 2),
        96: Size(4, 64, 2),
        128: Size(4, 32, 2),
        192: Size(2, 64, 2),
        256: Size(2, 32, 2),
    },
    ("output", 2, False): {
        32: Size(2, 64, 3),
        64: Size(2, 32, 3),
        96: Size(2, 64, 2),
        128: Size(2, 32, 2),
        192: Size(2, 32, 2),
        256: Size(2, 32, 2),
    },
    ("output", 4, False): {w: Size(2, 32, 2) for w in (32, 64, 96, 128)} | {w: Size(2, 16, 1) for w in (192, 256)},
    ("output", 8, False): {32: Size(2, 32, 2), 64: Size(2, 32, 2), 96: Size(2, 16, 2), 128: Size(1, 16, 2)}
    | {w: Size(1, 16, 1) for w in (192, 256)},
    ("gradient", 2, True): {
        32: Size(4, 32, 2, 2, pair=True),
        64: Size(2, 64, 2, 2, pair=True),
        96: Size(2, 64, 2, 2, pair=True),
        128: Size(2, 32, 2, 2, pair=True),
        192: Size(2, 32, 2, 1),
        256: Size(2, 32, 1, 2),
    },
    ("gradient", 2, False): {
        32: Size(2, 32, 2, 2, pair=True),
        64: Size(2, 32, 2, 2, pair=True),
        96: Size(2, 16, 2, 2, pair=True),
        128: Size(2, 32, 2, 2),
        192: Size(2, 16, 2, 1),
        256: Size(2, 16, 1, 2),
    },
    ("gradient", 4, False): {32: Size(2, 16, 2, 2, pair=True)}
    | {64: Size(2, 16, 2, 2), 96: Size(2, 16, 2, 2), 128: Size(2, 16, 1, 2)}
    | {w: Size(1, 16, 1) for w in (192, 256)},
    ("gradient", 8, False): {w: Size(1, 16, 2, 2, pair=True) for w in (32, 64)}
    | {96: Size(1, 16, 2, 1), 128: Size(1, 16, 1, 2)}
    | {w: Size(1, 8, 1) for w in (192, 256)},
}
