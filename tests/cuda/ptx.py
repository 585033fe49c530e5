"""Executes PTX, as NVRTC makes it, for one warp without branches: the assembly of kernels/probe.cuh.

What each instruction does is written down here from the PTX manual (PTX ISA 9.0, sections 9.7.3 ff.), apart from the
emulator and in another language. A register is 64 bits a lane, read as the instruction's type says.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Lanes = NDArray[Any]
LANES = np.arange(32)
GROUP, MEMBER = LANES // 4, LANES % 4
GLOBAL = 1 << 20  # where the buffer starts; shared memory starts at 0
SHARED_BYTES = 1 << 12
TYPES = {"32": np.uint32, "64": np.uint64, "16": np.uint16}
FLOATS = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


def execute(ptx: str, words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Run an entry with parameters (in, out) on `words` [32, 16] -> what it writes, [32, 16]."""
    warp = _Warp(words)
    for statement in _statements(ptx):
        warp.step(statement)
    return warp.memory[words.nbytes :].view(np.uint32).reshape(words.shape)


def _statements(ptx: str) -> list[str]:
    start = ptx.index("{", ptx.index(".entry")) + 1
    body = re.sub(r"//[^\n]*|\.(loc|pragma)\b[^\n]*", "", ptx[start : ptx.index("\n}", start)])
    found = (" ".join(statement.split()) for statement in body.split(";"))
    return [statement for statement in found if statement and not statement.startswith(".")]


class _Warp:
    """Registers of 32 lanes, the buffer of the device, and shared memory."""

    def __init__(self, words: NDArray[np.uint32]) -> None:
        self.memory = np.concatenate([words.reshape(-1).view(np.uint8), np.zeros(words.nbytes, np.uint8)])
        self.shared = np.full(SHARED_BYTES, 255, np.uint8)
        self._registers: dict[str, Lanes] = {}
        self._parameters = {"0": GLOBAL, "8": GLOBAL + words.nbytes}
        self._copies: list[tuple[Lanes, Lanes, Lanes]] = []

    def step(self, statement: str) -> None:
        """One instruction; NotImplementedError names one that is not known."""
        if statement in ("ret", "bar.sync 0", "cp.async.commit_group"):
            return
        name, _, rest = statement.partition(" ")
        operands = [found.strip() for found in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", rest)]
        for pattern, action in _ACTIONS:
            if match := re.fullmatch(pattern, name):
                action(self, operands, match)
                return
        raise NotImplementedError(statement)

    def read(self, operand: str, dtype: Any) -> Lanes:
        """A register or constant, as numbers of `dtype`."""
        dtype = np.dtype(dtype)
        if operand.startswith("%tid"):
            return LANES.astype(dtype)
        if operand.startswith("%"):
            return np.ascontiguousarray(self._registers[operand]).view(dtype)[:: 8 // dtype.itemsize]
        if operand.startswith("0f"):
            return np.full(32, int(operand[2:], 16), np.uint32).view(dtype)
        if re.fullmatch(r"-?\d+", operand):
            return np.full(32, int(operand) % (1 << 8 * dtype.itemsize), f"u{dtype.itemsize}").view(dtype)
        return np.zeros(32, dtype)  # the name of shared memory: where it starts

    def write(self, operand: str, numbers: Lanes) -> None:
        """Their bits to a register."""
        bits = np.zeros((32, 8 // numbers.dtype.itemsize), numbers.dtype)
        bits[:, 0] = numbers
        self._registers[operand] = bits.reshape(-1).view(np.uint64)

    def group(self, operand: str) -> list[str]:
        """The registers of {a, b, ...}, or of one alone."""
        return [name.strip() for name in operand.strip("{}").split(",")]

    def address(self, operand: str) -> Lanes:
        """Of [register + constant]."""
        register, constant = re.fullmatch(r"\[\s*(%\w+)\s*(?:\+(-?\d+))?\s*\]", operand).groups()  # type: ignore[union-attr]
        return self.read(register, np.uint64 if register.startswith("%rd") else np.uint32).astype(np.int64) + int(
            constant or 0
        )

    def space(self, name: str, address: Lanes) -> tuple[NDArray[np.uint8], Lanes]:
        """(bytes, index) of an address there."""
        return (self.shared, address) if name == "shared" else (self.memory, address - GLOBAL)

    def load(self, operands: list[str], match: re.Match[str]) -> None:
        """ld: parameter, global, shared."""
        if match["space"] == "param":
            offset = re.search(r"\+(\d+)\]", operands[1])
            return self.write(operands[0], np.full(32, self._parameters[offset[1] if offset else "0"], np.uint64))
        dtype = np.dtype(TYPES[match["bits"]])
        memory, at = self.space(match["space"], self.address(operands[1]))
        for n, register in enumerate(self.group(operands[0])):
            self.write(register, memory.view(dtype)[(at + n * dtype.itemsize) // dtype.itemsize])
        return None

    def store(self, operands: list[str], match: re.Match[str]) -> None:
        """st: global, shared."""
        dtype = np.dtype(TYPES[match["bits"]])
        memory, at = self.space(match["space"], self.address(operands[0]))
        for n, register in enumerate(self.group(operands[1])):
            memory.view(dtype)[(at + n * dtype.itemsize) // dtype.itemsize] = self.read(register, dtype)

    def move(self, operands: list[str], match: re.Match[str]) -> None:
        """mov, also between one register and its halves."""
        if operands[0].startswith("{"):
            halves = self.read(operands[1], np.uint64)
            for n, register in enumerate(self.group(operands[0])):
                self.write(register, (halves >> np.uint64(32 * n)).astype(np.uint32))
        elif operands[1].startswith("{"):
            low, high = (self.read(register, np.uint32).astype(np.uint64) for register in self.group(operands[1]))
            self.write(operands[0], low | high << np.uint64(32))
        else:
            self.write(operands[0], self.read(operands[1], TYPES[match["bits"]]))

    def shuffle(self, operands: list[str], match: re.Match[str]) -> None:
        """shfl.sync of all lanes."""
        bounds, lanes = (self.read(operand, np.uint32) for operand in operands[3:])
        assert (bounds == 31).all()
        assert (~lanes == 0).all()
        chosen = self.read(operands[2], np.uint32).astype(np.int64)
        source = LANES ^ chosen if match["mode"] == "bfly" else chosen % 32
        self.write(operands[0].split("|")[0], self.read(operands[1], np.uint32)[source])

    def copy(self, operands: list[str], _: re.Match[str]) -> None:
        """cp.async of 16 bytes, or of so many and zeros for the rest. It lands at the wait."""
        assert operands[2] == "16"
        self._copies.append(
            (self.address(operands[0]), self.address(operands[1]) - GLOBAL, self.read(operands[3], np.uint32))
        )

    def wait(self, operands: list[str], _: re.Match[str]) -> None:
        """cp.async.wait_group 0."""
        assert operands == ["0"]
        for to, source, count in self._copies:
            for lane in LANES:
                piece = np.zeros(16, np.uint8)
                piece[: count[lane]] = self.memory[source[lane] : source[lane] + count[lane]]
                self.shared[to[lane] : to[lane] + 16] = piece

    def load_matrices(self, operands: list[str], match: re.Match[str]) -> None:
        """ldmatrix: lane l names row l % 8 of matrix l / 8."""
        rows = self.shared.view(np.uint16)[self.address(operands[1])[:, None] // 2 + np.arange(8)].reshape(4, 8, 8)
        for register, matrix in zip(self.group(operands[0]), rows, strict=True):
            pairs = (matrix.T if match["trans"] else matrix)[GROUP[:, None], 2 * MEMBER[:, None] + [0, 1]]
            self.write(register, np.ascontiguousarray(pairs).view(np.uint32)[:, 0])

    def multiply_16(self, operands: list[str], match: re.Match[str]) -> None:
        """mma.m16n8k16."""
        dtype = FLOATS[match["type"]]
        d, a, b, c = (self.group(operand) for operand in operands)
        left, right, sums = np.empty((16, 16)), np.empty((16, 8)), np.empty((16, 8))
        for n, register in enumerate(a):
            pair = self.read(register, np.uint32)[:, None].view(dtype).astype(float)
            for e in range(2):
                left[GROUP + 8 * (n % 2), 2 * MEMBER + e + 8 * (n // 2)] = pair[:, e]
        for n, register in enumerate(b):
            pair = self.read(register, np.uint32)[:, None].view(dtype).astype(float)
            for e in range(2):
                right[2 * MEMBER + e + 8 * n, GROUP] = pair[:, e]
        for n, register in enumerate(c):
            sums[GROUP + 8 * (n // 2), 2 * MEMBER + n % 2] = self.read(register, np.float32)
        product = left @ right + sums
        for n, register in enumerate(d):
            self.write(register, product[GROUP + 8 * (n // 2), 2 * MEMBER + n % 2].astype(np.float32))

    def multiply_64(self, operands: list[str], _: re.Match[str]) -> None:
        """mma.m8n8k4 of float64."""
        d, a, b, c = (self.group(operand) for operand in operands)
        left, right, sums = np.empty((8, 4)), np.empty((4, 8)), np.empty((8, 8))
        left[GROUP, MEMBER], right[MEMBER, GROUP] = self.read(a[0], np.float64), self.read(b[0], np.float64)
        for n, register in enumerate(c):
            sums[GROUP, 2 * MEMBER + n] = self.read(register, np.float64)
        for n, register in enumerate(d):
            self.write(register, (left @ right + sums)[GROUP, 2 * MEMBER + n])

    def pack(self, operands: list[str], match: re.Match[str]) -> None:
        """cvt.rn.f16x2 and bf16x2: the first source goes to the upper half."""
        high, low = (
            self.read(operand, np.float32).astype(FLOATS[match["type"]]).view(np.uint16) for operand in operands[1:]
        )
        self.write(operands[0], low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16))

    def insert(self, operands: list[str], _: re.Match[str]) -> None:
        """bfi.b64: bits of the first source into the second one."""
        field, base = (self.read(operand, np.uint64) for operand in operands[1:3])
        at, length = int(operands[3]), int(operands[4])
        mask = np.uint64(((1 << length) - 1) << at)
        self.write(operands[0], base & ~mask | field << np.uint64(at) & mask)


def _of(dtype: Any, function: Callable[..., Lanes]) -> Callable[[_Warp, list[str], re.Match[str]], None]:
    """An instruction that computes each lane from sources of one type."""

    def action(warp: _Warp, operands: list[str], _: re.Match[str]) -> None:
        with np.errstate(all="ignore"):
            warp.write(operands[0], function(*(warp.read(operand, dtype) for operand in operands[1:])))

    return action


def _high(a: Lanes, b: Lanes) -> Lanes:
    return (a.astype(np.uint64) * b.astype(np.uint64) >> np.uint64(32)).astype(np.uint32)


def _fused(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    return (a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)).astype(np.float32)


_ACTIONS: tuple[tuple[str, Callable[[_Warp, list[str], re.Match[str]], None]], ...] = (
    (r"ld\.(?P<space>param|global|shared)(\.v4)?\.[ufb](?P<bits>\d+)", _Warp.load),
    (r"st\.(?P<space>global|shared)(\.v4)?\.[ufb](?P<bits>\d+)", _Warp.store),
    (r"mov\.[usfb](?P<bits>32|64)", _Warp.move),
    (r"cvta\..*u64", _of(np.uint64, lambda a: a)),
    (r"cvt\.u64\.u32", _of(np.uint32, lambda a: a.astype(np.uint64))),
    (r"cvt\.u32\.u64", _of(np.uint64, lambda a: a.astype(np.uint32))),
    (r"cvt\.f32\.f16", _of(np.float16, lambda a: a.astype(np.float32))),
    (r"cvt\.rn\.(?P<type>f16|bf16)x2\.f32", _Warp.pack),
    (r"mul\.wide\.s32", _of(np.int32, lambda a, b: a.astype(np.int64) * b.astype(np.int64))),
    (r"mul\.hi\.u32", _of(np.uint32, _high)),
    (r"mul(\.rn)?\.f32", _of(np.float32, lambda a, b: a * b)),
    (r"fma\.rn\.f32", _of(np.float32, _fused)),
    (r"max\.f32", _of(np.float32, np.fmax)),
    (r"ex2\.approx\.ftz\.f32", _of(np.float32, np.exp2)),
    (r"add\.s64", _of(np.int64, np.add)),
    (r"sub\.s32", _of(np.int32, np.subtract)),
    (r"and\.b32", _of(np.uint32, np.bitwise_and)),
    (r"or\.b32", _of(np.uint32, np.bitwise_or)),
    (r"shl\.b32", _of(np.uint32, np.left_shift)),
    (r"shr\.u64", _of(np.uint64, np.right_shift)),
    (r"bfi\.b64", _Warp.insert),
    (r"shfl\.sync\.(?P<mode>bfly|idx)\.b32", _Warp.shuffle),
    (r"cp\.async\.cg\.shared\.global", _Warp.copy),
    (r"cp\.async\.wait_group", _Warp.wait),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x4(?P<trans>\.trans)?\.shared\.b16", _Warp.load_matrices),
    (r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(?P<type>f16|bf16)\.b?f16\.f32", _Warp.multiply_16),
    (r"mma\.sync\.aligned\.m8n8k4\.row\.col\.f64\.f64\.f64\.f64", _Warp.multiply_64),
)
