"""What a warp does at once (PTX ISA 9.0, sections 9.7.9 and 9.7.14). All 32 lanes of it must take part.

Lane 4 g + t of a warp holds of a product: rows g and g + 8; columns 2 t and 2 t + 1.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tests.cuda.ptx.arithmetic import Action
from tests.cuda.ptx.memory import Memory, PtxError
from tests.cuda.ptx.program import Instruction
from tests.cuda.ptx.registers import Lanes, Registers

_LANE = np.arange(32)
_SHUFFLES = {
    "bfly": lambda by: _LANE ^ by,
    "idx": lambda by: by,
    "up": lambda by: np.where(by <= _LANE, _LANE - by, _LANE),
    "down": lambda by: np.where(_LANE + by < 32, _LANE + by, _LANE),
}


def action_of(instruction: Instruction, registers: Registers, memory: Memory) -> Action | None:
    """What executes it; None where it is not of this kind."""
    name = instruction.name
    action: Action | None = None
    if match := re.fullmatch(r"shfl\.sync\.(\w+)\.b32", name):
        action = _shuffle(match[1], instruction, registers)
    elif match := re.fullmatch(r"ldmatrix\.sync\.aligned\.m8n8\.x4(\.trans)?\.shared(::cta)?\.b16", name):
        action = _load_matrices(bool(match[1]), instruction, registers, memory)
    elif match := re.fullmatch(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(b?f16)\.\1\.f32", name):
        action = _multiply_16(match[1], instruction, registers)
    elif name == "bar.warp.sync":
        action = _wait
    elif name == "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64":
        action = _multiply_64(instruction, registers)
    return _of_whole_warps(name, action) if action else None


def _of_whole_warps(name: str, action: Action) -> Action:
    def act(where: Any) -> None:
        if where is not True:
            lanes = where.reshape(-1, 32)
            if (lanes.any(1) != lanes.all(1)).any():
                raise PtxError(f"lanes of a warp have parted before {name}")
        action(where)

    return act


def _wait(where: Any) -> None:
    """Lanes of a warp are together here in any case."""


def _shuffle(mode: str, instruction: Instruction, registers: Registers) -> Action:
    targets = instruction.operands[0].split("|")
    target = registers.of(targets[0], "b32")
    value, by, bounds, lanes = (registers.of(operand, "b32") for operand in instruction.operands[1:5])

    def act(where: Any) -> None:
        if (bounds[where] != (0 if mode == "up" else 31)).any() or (~lanes[where]).any():
            raise PtxError(f"{instruction} is not of all 32 lanes")
        source = _SHUFFLES[mode](by.reshape(-1, 32).astype(np.int64) % 32)
        found = np.take_along_axis(value.reshape(-1, 32), np.broadcast_to(source, (len(value) // 32, 32)), 1)
        np.copyto(target, found.reshape(-1), where=where)

    return act


def _load_matrices(transposed: bool, instruction: Instruction, registers: Registers, memory: Memory) -> Action:
    """Lane l names row l % 8 of matrix l / 8."""
    targets, address = registers.group(instruction.operands[0], "b32"), address_of(instruction.operands[1], registers)

    def act(where: Any) -> None:
        lanes = np.arange(registers.lanes) if where is True else np.flatnonzero(where)
        matrices = memory.rows(address(), lanes).reshape(-1, 4, 8, 8)
        if transposed:
            matrices = matrices.swapaxes(2, 3)
        for n, target in enumerate(targets):
            target[lanes] = np.ascontiguousarray(matrices[:, n]).view(np.uint32).reshape(-1)

    return act


def _wide(register: Lanes, kind: str) -> Lanes:
    """Two numbers of 16 bit in each lane, as [warp, g, 2 t + e] of float32."""
    halves = register.view(np.uint16)
    numbers = (
        halves.view(np.float16).astype("f4") if kind == "f16" else (halves.astype("u4") << np.uint32(16)).view("f4")
    )
    return numbers.reshape(-1, 8, 8)


def _exponents(numbers: Lanes) -> Lanes:
    """Of the leading bits; that of 0 is below all others."""
    return np.where(numbers == 0, -9999, np.frexp(numbers)[1] - 1)


def _cut_sums(sums: Lanes, left: Lanes, right: Lanes) -> Lanes:
    """C + A B of [warps, 16, 8], eight columns of A and rows of B at a time, as tensor cores of the A100 add.

    All nine addends are aligned to the largest exponent, cut off one bit below float32's last one, added exactly, and
    the sum is cut off to float32 (Fasi et al. 2021, PeerJ CS 7:e330; Khattak and Mikaitis 2025, arXiv 2512.07004).
    """
    products = left[..., None] * right[:, None]  # [warp, row, k, column]
    tops = (_exponents(left)[..., None] + _exponents(right)[:, None]).max(2)
    tops = np.maximum(np.maximum(tops, _exponents(sums)), -126)
    found = np.trunc(np.ldexp(sums, 24 - tops)) + np.trunc(np.ldexp(products, 24 - tops[:, :, None])).sum(2)
    exact = np.ldexp(found, tops - 24)
    near = exact.astype(np.float32)
    cut = np.where(np.abs(near) > np.abs(exact), np.nextafter(near, np.float32(0)), near)
    plain = sums + products.sum(2)
    return np.where(np.isfinite(plain), np.where(np.isinf(near), near, cut), plain)


def _multiply_16(kind: str, instruction: Instruction, registers: Registers) -> Action:
    """D = A B + C of [16, 16] and [16, 8]."""
    d, a, b, c = (
        registers.group(x, y) for x, y in zip(instruction.operands, ("f32", "b32", "b32", "f32"), strict=True)
    )
    warps = registers.lanes // 32
    left, right, sums = np.empty((warps, 16, 16)), np.empty((warps, 16, 8)), np.empty((warps, 16, 8))

    def act(where: Any) -> None:
        for n, register in enumerate(a):
            left[:, 8 * (n % 2) : 8 * (n % 2) + 8, 8 * (n // 2) : 8 * (n // 2) + 8] = _wide(register, kind)
        for n, register in enumerate(b):
            right[:, 8 * n : 8 * n + 8] = _wide(register, kind).swapaxes(1, 2)
        for n, register in enumerate(c):
            sums[:, 8 * (n // 2) : 8 * (n // 2) + 8, n % 2 :: 2] = register.reshape(-1, 8, 4)
        product = sums
        for k in (slice(0, 8), slice(8, 16)):
            product = _cut_sums(product, left[:, :, k], right[:, k])
        for n, register in enumerate(d):
            part = product[:, 8 * (n // 2) : 8 * (n // 2) + 8, n % 2 :: 2]
            np.copyto(register, part.reshape(-1), where=where, casting="same_kind")

    return act


def _multiply_64(instruction: Instruction, registers: Registers) -> Action:
    """D = A B + C of [8, 4] and [4, 8]."""
    d, a, b, c = (registers.group(operand, "f64") for operand in instruction.operands)
    sums = np.empty((registers.lanes // 32, 8, 8))

    def act(where: Any) -> None:
        for n, register in enumerate(c):
            sums[:, :, n::2] = register.reshape(-1, 8, 4)
        product = a[0].reshape(-1, 8, 4) @ b[0].reshape(-1, 8, 4).swapaxes(1, 2) + sums
        for n, register in enumerate(d):
            np.copyto(register, product[:, :, n::2].reshape(-1), where=where)

    return act


def address_of(operand: str, registers: Registers) -> Any:
    """A function that gives the addresses of [register + constant], int64 for each lane."""
    match = re.fullmatch(r"\[\s*([%$\w]+)\s*(?:\+\s*(-?\d+))?\s*\]", operand)
    assert match is not None, operand
    constant = np.int64(match[2] or 0)
    if not match[1].startswith("%"):
        base = registers.of(match[1], "b64")
        return lambda: base.astype(np.int64) + constant
    base = registers.of_any(match[1])
    return lambda: base.astype(np.int64) + constant
