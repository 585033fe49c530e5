"""Instructions that compute each lane for itself (PTX ISA 9.0, sections 9.7.1 to 9.7.9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tests.cuda.ptx.memory import SHARED
from tests.cuda.ptx.program import Instruction
from tests.cuda.ptx.registers import DTYPES, Lanes, Registers

Action = Callable[[Any], None]  # given the lanes that take part: True (all), or a mask
_WIDER = {"s32": "s64", "u32": "u64", "u16": "u32", "s16": "s32"}


def _divide(a: Lanes, b: Lanes) -> Lanes:
    """Towards zero, as in C."""
    if a.dtype.kind == "f":
        return a / b
    divisor = np.where(b == 0, a.dtype.type(1), b)
    return (a - np.fmod(a, divisor)) // divisor


def _remainder(a: Lanes, b: Lanes) -> Lanes:
    return np.fmod(a, np.where(b == 0, a.dtype.type(1), b))


def _fused(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """Rounded once; in the next wider numbers, so that a tie of float64 may fall to the other side."""
    wide = np.float64 if a.dtype == np.float32 else np.longdouble
    return (a.astype(wide) * b.astype(wide) + c.astype(wide)).astype(a.dtype)


def _high(a: Lanes, b: Lanes) -> Lanes:
    wide = {"u": np.uint64, "i": np.int64}[a.dtype.kind]
    return (a.astype(wide) * b.astype(wide) >> wide(32)).astype(a.dtype)


def _least(a: Lanes, b: Lanes) -> Lanes:
    return np.fmin(a, b) if a.dtype.kind == "f" else np.minimum(a, b)


def _largest(a: Lanes, b: Lanes) -> Lanes:
    return np.fmax(a, b) if a.dtype.kind == "f" else np.maximum(a, b)


def _flushed(x: Lanes) -> Lanes:
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, x.dtype.type(0), x)


def _shift_left(a: Lanes, by: Lanes) -> Lanes:
    return np.where(by < 8 * a.itemsize, a << np.minimum(by, 8 * a.itemsize - 1).astype(a.dtype), a.dtype.type(0))


def _shift_right(a: Lanes, by: Lanes) -> Lanes:
    most = 8 * a.itemsize - 1
    shifted = a >> np.minimum(by, most).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else np.where(by <= most, shifted, a.dtype.type(0))


def _insert(field: Lanes, base: Lanes, at: Lanes, length: Lanes) -> Lanes:
    """bfi: the lowest bits of the first source into the second one."""
    one = base.dtype.type(1)
    mask = ((one << length.astype(base.dtype)) - one) << at.astype(base.dtype)
    return base & ~mask | field << at.astype(base.dtype) & mask


def _extract(a: Lanes, at: Lanes, length: Lanes) -> Lanes:
    """bfe of unsigned numbers."""
    one = a.dtype.type(1)
    return a >> at.astype(a.dtype) & ((one << length.astype(a.dtype)) - one)


def _permuted(a: Lanes, b: Lanes, chosen: Lanes) -> Lanes:
    """prmt.b32: bytes of (b, a)."""
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    found = np.zeros_like(a)
    for n in range(4):
        pick = chosen >> np.uint32(4 * n) & np.uint32(15)
        assert (pick < 8).all(), "prmt with a sign"
        found |= ((both >> (pick * np.uint32(8)).astype(np.uint64)).astype(np.uint32) & np.uint32(255)) << np.uint32(
            8 * n
        )
    return found


# name without its type: (function, types of the sources after the first two where they differ)
_FUNCTIONS: dict[str, tuple[Callable[..., Lanes], tuple[str, ...]]] = {
    "mov": (lambda x: x, ()),
    "cvta.to.global": (lambda x: x, ()),
    "cvta.global": (lambda x: x, ()),
    "cvta.shared": (lambda x: x + x.dtype.type(SHARED), ()),
    "cvta.to.shared": (lambda x: x - x.dtype.type(SHARED), ()),
    "add": (np.add, ()),
    "sub": (np.subtract, ()),
    "mul": (np.multiply, ()),
    "mul.hi": (_high, ()),
    "mad": (lambda a, b, c: a * b + c, ()),
    "mad.hi": (lambda a, b, c: _high(a, b) + c, ()),
    "fma": (_fused, ()),
    "div": (_divide, ()),
    "rem": (_remainder, ()),
    "rcp": (lambda x: _flushed(1 / x), ()),
    "sqrt": (np.sqrt, ()),
    "ex2": (lambda x: _flushed(np.exp2(x)), ()),
    "tanh": (np.tanh, ()),
    "abs": (np.abs, ()),
    "neg": (np.negative, ()),
    "min": (_least, ()),
    "max": (_largest, ()),
    "copysign": (lambda a, b: np.copysign(b, a), ()),
    "and": (np.bitwise_and, ()),
    "or": (np.bitwise_or, ()),
    "xor": (np.bitwise_xor, ()),
    "not": (np.invert, ()),
    "shl": (_shift_left, ("", "u32")),
    "shr": (_shift_right, ("", "u32")),
    "bfi": (_insert, ("", "", "u32", "u32")),
    "bfe": (_extract, ("", "u32", "u32")),
    "prmt": (_permuted, ()),
    "selp": (lambda a, b, p: np.where(p, a, b), ("", "", "pred")),
}
_MODIFIERS = {"lo", "rn", "approx", "ftz", "full"}
_COMPARISONS: dict[str, Callable[[Lanes, Lanes], Lanes]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    **dict.fromkeys(("lt", "lo"), np.less),
    **dict.fromkeys(("le", "ls"), np.less_equal),
    **dict.fromkeys(("gt", "hi"), np.greater),
    **dict.fromkeys(("ge", "hs"), np.greater_equal),
}
_ROUNDINGS: dict[str, Callable[[Lanes], Lanes]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def action_of(instruction: Instruction, registers: Registers) -> Action | None:
    """What executes it; None where it is not of this kind."""
    head, *rest = instruction.name.split(".")
    if head == "setp":
        return _comparison(instruction, registers)
    if head == "cvt":
        return _conversion(instruction, registers)
    if head in ("mul", "mad") and rest[0] == "wide":
        return _widening(instruction, registers)
    if head == "mov" and "{" in "".join(instruction.operands):
        return _move_parts(instruction, registers)
    kept = [word for word in rest[:-1] if word not in _MODIFIERS]
    found = _FUNCTIONS.get(".".join([head, *kept]))
    if found is None:
        return None
    function, kinds = found
    names, kind = instruction.operands[1:], rest[-1]
    sources = [registers.of(name, own or kind) for name, own in zip(names, kinds or [kind] * len(names), strict=True)]
    return _elementwise(function, sources, registers.of(instruction.operands[0], kind))


def _elementwise(function: Callable[..., Lanes], sources: list[Lanes], target: Lanes) -> Action:
    if isinstance(function, np.ufunc):
        return lambda where: function(*sources, out=target, where=where)  # type: ignore[return-value]
    return lambda where: np.copyto(target, function(*sources), where=where)


def _comparison(instruction: Instruction, registers: Registers) -> Action:
    _, name, *rest = instruction.name.split(".")
    kind, targets = rest[-1], instruction.operands[0].split("|")
    a, b = (registers.of(operand, kind) for operand in instruction.operands[1:3])
    joined = registers.of(instruction.operands[3], "pred") if len(instruction.operands) > 3 else None
    join = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[rest[0]] if joined is not None else None
    outputs = [registers.of(target, "pred") for target in targets]

    def act(where: Any) -> None:
        found = _compare(name, a, b)
        for output, holds in zip(outputs, (found, ~found), strict=False):
            np.copyto(output, holds if join is None else join(holds, joined), where=where)

    return act


def _compare(name: str, a: Lanes, b: Lanes) -> Lanes:
    """Floats: a name that ends in u holds for NaN, the others do not."""
    if a.dtype.kind != "f":
        return _COMPARISONS[name](a, b)
    unordered = np.isnan(a) | np.isnan(b)
    if name in ("num", "nan"):
        return unordered == (name == "nan")
    if name[:2] in _COMPARISONS and name.endswith("u"):
        return _COMPARISONS[name[:2]](a, b) | unordered
    return _COMPARISONS[name](a, b) & ~unordered


def _conversion(instruction: Instruction, registers: Registers) -> Action | None:
    _, *modifiers, to, source = instruction.name.split(".")
    if to in ("f16x2", "bf16x2"):
        return _packing(instruction, registers, np.dtype(np.float16 if to == "f16x2" else ml_dtypes.bfloat16))
    if to not in DTYPES or source not in DTYPES:
        return None
    target, own = registers.of(instruction.operands[0], to), registers.low_part(instruction.operands[1], source)
    round_ = next((_ROUNDINGS[word] for word in modifiers if word in _ROUNDINGS), None)

    def convert(x: Lanes) -> Lanes:
        whole = round_(x) if round_ else x
        if target.dtype.kind in "iu" and x.dtype.kind == "f":
            limits = np.iinfo(target.dtype)
            whole = np.clip(np.nan_to_num(whole), limits.min, limits.max)
        return whole.astype(target.dtype)

    return _elementwise(convert, [own], target)


def _packing(instruction: Instruction, registers: Registers, dtype: np.dtype) -> Action:
    """Two numbers of 16 bit: the first source goes to the upper half."""
    high, low = (registers.of(operand, "f32") for operand in instruction.operands[1:])

    def pack(high: Lanes, low: Lanes) -> Lanes:
        upper, lower = (x.astype(dtype).view(np.uint16).astype(np.uint32) for x in (high, low))
        return lower | upper << np.uint32(16)

    return _elementwise(pack, [high, low], registers.of(instruction.operands[0], "u32"))


def _widening(instruction: Instruction, registers: Registers) -> Action:
    kind = instruction.name.rpartition(".")[2]
    wide = _WIDER[kind]
    a, b = (registers.of(operand, kind) for operand in instruction.operands[1:3])
    more = [registers.of(operand, wide) for operand in instruction.operands[3:]]

    def multiply(a: Lanes, b: Lanes, *more: Lanes) -> Lanes:
        return sum(more, a.astype(DTYPES[wide]) * b.astype(DTYPES[wide]))

    return _elementwise(multiply, [a, b, *more], registers.of(instruction.operands[0], wide))


def _move_parts(instruction: Instruction, registers: Registers) -> Action:
    """Mov between one register and its parts."""
    target, source = instruction.operands
    kind = instruction.name.rpartition(".")[2]
    bits = 8 * DTYPES[kind].itemsize
    parts_of = target if target.startswith("{") else source
    count = parts_of.count(",") + 1
    parts = registers.group(parts_of, f"b{bits // count}")
    whole = registers.of(source if parts_of is target else target, kind.replace("f", "b"))

    def split(where: Any) -> None:
        for n, part in enumerate(parts):
            shifted = whole >> whole.dtype.type(n * bits // count)
            np.copyto(part, shifted.astype(part.dtype), where=where)

    def join(where: Any) -> None:
        made = sum((part.astype(whole.dtype) << whole.dtype.type(n * bits // count)) for n, part in enumerate(parts))
        np.copyto(whole, made, where=where)

    return split if parts_of is target else join
