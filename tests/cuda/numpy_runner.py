"""The kernels once more, by the NumPy backend: what the host hands to them is tested without a compiler."""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np

from ringmpi.backends.cuda.backward import transposed
from ringmpi.backends.cuda.instances import WARPS
from ringmpi.backends.numpy.attend import NumpyBackend
from ringmpi.core.dropout import WORDS
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.gradients import Gradients, Saved
from ringmpi.core.partial import Partial
from ringmpi.core.scoring import Scoring
from ringmpi.core.work import COLUMNS


class NumpyRunner:
    """Runs kernels for an emulated CuPy (emulated_cupy.py)."""

    def __init__(self) -> None:
        self.launches: list[str] = []

    def __call__(self, kernel: Any, size: tuple[int, int], argument: Any, bounds: Any) -> None:
        self.launches.append(kernel.label)
        if kernel.source == "add.cuh":
            to, other = (dense(argument[name], (int(argument["count"]),), kernel.dtype) for name in ("to", "other"))
            to += other
            return
        call = Call(kernel.dtype, argument, bounds)
        (call.backward if kernel.part == "gradient" else call.forward)()


class Call:
    """What an argument says (ringmpi/backends/cuda/arguments.py)."""

    def __init__(self, dtype: np.dtype, argument: Any, bounds: Any) -> None:
        self.argument, self.problem = argument, argument["problem"]
        self.wide, self.backend = accumulate_dtype(dtype), NumpyBackend()
        names = "batch", "query_heads", "key_heads", "head_dim", "value_dim", "queries", "keys"
        self.batch, self.query_heads, self.key_heads, self.dim, self.value_dim, self.queries, self.keys = (
            int(self.problem[name]) for name in names
        )
        shapes = {"q": self.of_queries(self.dim), "k": self.of_keys(self.dim), "v": self.of_keys(self.value_dim)}
        self.qkv = [strided(self.problem[name], shape, dtype) for name, shape in shapes.items()]
        self.dtype, self.bounds = dtype, bounds
        address = int(self.problem["work"]["items"])
        items = self.bytes_from(address) // (8 * COLUMNS)
        self.work = dense(address, (items, COLUMNS), np.dtype(np.int64))

    def of_queries(self, *last: int) -> tuple[int, ...]:
        return self.batch, self.query_heads, self.queries, *last

    def of_keys(self, *last: int) -> tuple[int, ...]:
        return self.batch, self.key_heads, self.keys, *last

    def bytes_from(self, address: int) -> int:
        """Of the buffer that starts there."""
        return next(int(stop - start) for start, stop in self.bounds if start == address)

    @property
    def scoring(self) -> Scoring:
        said = self.problem["scoring"]
        slopes = dense(said["slopes"], (self.query_heads,), np.dtype(np.float64)) if said["slopes"] else None
        return Scoring(
            float(said["scale"]),
            float(said["softcap"]) or None,
            slopes,
            dropout=int(said["least"]) / WORDS,
            seed=int(said["seed"]),
        )

    def count(self, pairs: int) -> None:
        dense(self.problem["attended"], (1,), np.dtype(np.int64))[0] = pairs

    def forward(self) -> None:
        shapes = {"row_max": (), "row_sum": (), "weighted_sum": (self.value_dim,)}
        sums = [dense(self.argument[name], self.of_queries(*last), self.wide) for name, last in shapes.items()]
        finite = bool(self.problem["finite"])
        self.count(self.backend.attend(*self.qkv, self.work, self.scoring, finite=finite, into=Partial(*sums))[1])

    def backward(self) -> None:
        rows = [dense(self.argument[name], self.of_queries(), self.wide) for name in ("log_sum_exp", "delta")]
        saved = Saved(strided(self.argument["grad_output"], self.of_queries(self.value_dim), self.dtype), *rows)
        by_key, made = bool(self.argument["by_key"]), [np.zeros(array.shape, self.wide) for array in self.qkv]
        work = transposed(self.work) if by_key else self.work
        into = Gradients(
            None if by_key else made[0], *(made[1:] if by_key else (None, None)), np.zeros(self.query_heads)
        )
        finite = bool(self.problem["finite"])
        self.count(self.backend.attend_backward(*self.qkv, saved, work, self.scoring, into=into, finite=finite))
        for name, gradient in zip(("inner", "outer"), made[1:] if by_key else made[:1], strict=False):
            if self.argument[name]:
                to = dense(self.argument[name], gradient.shape, self.wide)
                to += gradient
        if self.argument["slope"] and not by_key:
            blocks = self.bytes_from(int(self.argument["slope"])) // (8 * self.batch * self.query_heads * WARPS)
            shape = blocks, self.batch, self.query_heads, WARPS
            dense(self.argument["slope"], shape, np.dtype(np.float64))[0, 0, :, 0] += into.slope


def dense(address: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Memory of the device, as kernels see it."""
    raw = (ctypes.c_char * (prod(shape) * dtype.itemsize)).from_address(int(address))
    return np.frombuffer(raw, dtype).reshape(shape)


def strided(record: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The same, with the strides of arguments.ARRAY."""
    strides = [int(stride) for stride in record["stride"]]
    assert not any(stride % 16 for stride in strides), f"rows start at multiples of 16 bytes, not {strides}"
    extent = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=False)) + shape[-1] * dtype.itemsize
    raw = (ctypes.c_char * (extent if 0 not in shape else 0)).from_address(int(record["data"]))
    return np.ndarray(shape, dtype, raw, strides=(*strides, dtype.itemsize))
