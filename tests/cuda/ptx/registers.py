"""Registers of all threads of a grid, and what stands in the place of one."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.cuda.ptx.program import Program

Lanes = NDArray[Any]  # one number a thread of the grid
DTYPES = {
    **{f"{kind}{bits}": np.dtype(f"{kind}{bits // 8}") for kind in "uf" for bits in (16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"b{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
    "u8": np.dtype(np.uint8),
    "pred": np.dtype(bool),
}


class Registers:
    """A register is an array of bits; an instruction says what they mean.

    Parameters
    ----------
    program : Program
    grid, threads : int
        Blocks, and threads of one.
    symbols : dict
        Name -> address: of the parameter, of shared memory.
    """

    def __init__(self, program: Program, grid: int, threads: int, symbols: dict[str, int]) -> None:
        self.lanes = grid * threads
        self._types, self._symbols = program.registers, symbols
        self._bits: dict[str, Lanes] = {}
        thread = np.arange(self.lanes, dtype=np.uint32)
        self._special = {
            "%tid.x": thread % np.uint32(threads),
            "%ctaid.x": thread // np.uint32(threads),
            "%ntid.x": np.full(self.lanes, threads, np.uint32),
            "%nctaid.x": np.full(self.lanes, grid, np.uint32),
        }
        self.constant = cache(self._constant)

    def of(self, name: str, kind: str) -> Lanes:
        """A register (to read or write), constant, symbol, or place of the thread, as numbers of type `kind`."""
        dtype = DTYPES[kind]
        if name in self._special:
            return self._special[name].view(dtype) if dtype.itemsize == 4 else self._special[name].astype(dtype)
        if not name.startswith("%"):
            return self.constant(name, kind)
        if name not in self._bits:
            own = self._types.get(name) or self._types[re.sub(r"\d+$", "", name)]
            self._bits[name] = np.zeros(self.lanes, DTYPES[own if own == "pred" else "b" + own[1:]])
        bits = self._bits[name]
        if kind == "pred" or bits.itemsize == dtype.itemsize:
            return bits.view(dtype)
        raise NotImplementedError(f"{name} of {8 * bits.itemsize} bits, read or written as {kind}")

    def low_part(self, name: str, kind: str) -> Lanes:
        """A register to read, which may hold more bits than `kind` has: those at the bottom count (cvt, st)."""
        bits = self.of_any(name) if name.startswith("%") and name not in self._special else self.of(name, kind)
        return (
            bits if bits.dtype == DTYPES[kind] else bits.view(DTYPES[kind])[:: bits.itemsize // DTYPES[kind].itemsize]
        )

    def to_fill(self, operand: str, kind: str) -> list[Lanes]:
        """The registers that a load writes; a wider one is filled up with the sign, or zeros."""
        found = []
        for name in operand.strip("{}").split(","):
            bits, dtype = self.of_any(name.strip()), DTYPES[kind]
            found.append(bits.view(dtype if dtype.itemsize == bits.itemsize else f"{dtype.kind}{bits.itemsize}"))
        return found

    def of_any(self, name: str) -> Lanes:
        """A register, as the unsigned numbers that it holds: an address."""
        own = self._types.get(name) or self._types[re.sub(r"\d+$", "", name)]
        return self.of(name, "b" + own[1:])

    def group(self, operand: str, kind: str) -> list[Lanes]:
        """The registers of {a, b, ...}, or of one alone."""
        return [self.of(name.strip(), kind) for name in operand.strip("{}").split(",")]

    def _constant(self, text: str, kind: str) -> Lanes:
        dtype = DTYPES[kind]
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
            bits = np.array(int(text[2:], 16), np.uint32).view(np.float32)
            return np.full(self.lanes, bits.view(dtype) if dtype.itemsize == 4 else bits.astype(dtype))
        if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", text):
            return np.full(self.lanes, np.array(int(text[2:], 16), np.uint64).view(dtype))
        number = self._symbols[text] if text in self._symbols else int(text, 0)
        if kind == "pred":
            return np.full(self.lanes, bool(number))
        return np.full(self.lanes, number % (1 << 8 * dtype.itemsize), f"u{dtype.itemsize}").view(dtype)
