"""Runs a kernel: all threads of all blocks, those with the smallest program counter first."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.cuda.ptx import arithmetic, collectives
from tests.cuda.ptx.arithmetic import Action
from tests.cuda.ptx.collectives import address_of
from tests.cuda.ptx.memory import PARAMETER, Memory, PtxError
from tests.cuda.ptx.program import Instruction, Program, parse
from tests.cuda.ptx.registers import DTYPES, Registers

MOST_STEPS = 20_000_000  # instructions of a launch, for all its threads at once: more is taken for a loop without end


class Grid:
    """One launch.

    Parameters
    ----------
    ptx : str
    size : tuple of int
        Blocks, and threads of one.
    argument : record
    shared_bytes : int
    bounds : uint64 [n, 2]
        Buffers of the device.
    """

    def __init__(self, ptx: str, size: tuple[int, int], argument: Any, shared_bytes: int, bounds: Any) -> None:
        grid, self._threads = size
        program = parse(ptx)
        symbols = {program.parameter: PARAMETER} | dict.fromkeys(re.findall(r"\.shared[^;]*?(\w+)\[\]", ptx), 0)
        self._registers = Registers(program, grid, self._threads, symbols)
        self._memory = Memory(bounds, argument, shared_bytes, grid, self._threads)
        self._counter = np.zeros(grid * self._threads, np.int64)
        self._waiting = np.zeros(grid * self._threads, bool)
        self._votes: dict[int, Callable[[NDArray[np.bool_]], None]] = {}
        self._end = len(program.instructions)
        self._steps = [self._step_of(n, program) for n in range(self._end)]
        self._names = [str(instruction) for instruction in program.instructions]

    def run(self) -> None:
        """Until all threads have ended.

        Raises
        ------
        PtxError
            An address out of bounds, threads that wait for each other, a copy that nobody waits for.
        """
        count = 0
        with np.errstate(all="ignore"):
            while (self._counter < self._end).any():
                running = ~self._waiting & (self._counter < self._end)
                if not running.any():
                    self._release()
                    continue
                count += self._run_from(int(self._counter[running].min()), running)
                if count > MOST_STEPS:
                    raise PtxError("a loop without end")
        self._memory.end()

    def _run_from(self, at: int, running: NDArray[np.bool_]) -> int:
        """Straight on, until threads part or meet others -> instructions done."""
        active = running & (self._counter == at)
        where: Any = True if active.all() else active
        others = self._counter[running & ~active]
        limit, begun = int(others.min(initial=self._end)), at
        while at < limit:
            control, step = self._steps[at]
            at += 1
            if control:
                self._counter[active] = at
                try:
                    step(active)
                except PtxError as fault:
                    raise PtxError(f"{self._names[at - 1]}: {fault}") from fault
                return at - begun
            try:
                step(where)
            except PtxError as fault:
                raise PtxError(f"{self._names[at - 1]}: {fault}") from fault
        self._counter[active] = at
        return at - begun

    def _release(self) -> None:
        """All that can run wait at a barrier: let each block go on whose threads are all there."""
        by_block = self._counter.reshape(-1, self._threads)
        ended = (by_block == self._end).all(1)
        there = self._waiting.reshape(-1, self._threads).all(1)
        same = (by_block == by_block[:, :1]).all(1)
        if not (ended | (there & same)).all():
            raise PtxError("threads are at different barriers, or have ended before one")
        for at in np.unique(by_block[there, 0]):
            lanes = self._waiting & (self._counter == at)
            if int(at) in self._votes:
                self._votes[int(at)](lanes)
        self._waiting[:] = False

    def _step_of(self, index: int, program: Program) -> tuple[bool, Action]:
        """(whether it changes where threads are, what executes it)."""
        instruction = program.instructions[index]
        if control := self._control(index, instruction, program):
            return True, control
        action = (
            self._memory_action(instruction)
            or collectives.action_of(instruction, self._registers, self._memory)
            or arithmetic.action_of(instruction, self._registers)
        )
        if action is None:
            raise NotImplementedError(str(instruction))
        return False, self._guarded(instruction, action)

    def _guarded(self, instruction: Instruction, action: Action) -> Action:
        if not instruction.guard:
            return action
        guard, negated = self._registers.of(instruction.guard, "pred"), instruction.negated

        def act(where: Any) -> None:
            chosen = guard ^ negated if where is True else where & (guard ^ negated)
            if chosen.any():
                action(chosen)

        return act

    def _control(self, index: int, instruction: Instruction, program: Program) -> Action | None:
        head = instruction.name.split(".")[0]
        if head in ("ret", "exit", "bra"):
            target = self._end if head != "bra" else program.labels[instruction.operands[0]]

            def jump(lanes: Any) -> None:
                self._counter[lanes] = target

            return self._guarded(instruction, jump)
        if head not in ("bar", "barrier") or instruction.name == "bar.warp.sync":
            return None
        if instruction.guard or instruction.operands[:1] not in (("0",), ()) and "red" not in instruction.name:
            raise NotImplementedError(str(instruction))
        if "red" in instruction.name:
            self._votes[index + 1] = self._vote(instruction)

        def wait(lanes: Any) -> None:
            self._waiting[lanes] = True

        return wait

    def _vote(self, instruction: Instruction) -> Callable[[NDArray[np.bool_]], None]:
        """bar.red.or.pred p, 0, q: whether q holds for any thread of the block."""
        if ".red.or.pred" not in instruction.name:
            raise NotImplementedError(str(instruction))
        target, own = (self._registers.of(instruction.operands[n], "pred") for n in (0, -1))

        def vote(lanes: NDArray[np.bool_]) -> None:
            found = own.reshape(-1, self._threads).any(1)
            np.copyto(target, np.repeat(found, self._threads), where=lanes)

        return vote

    def _memory_action(self, instruction: Instruction) -> Action | None:
        name, operands, memory = instruction.name, instruction.operands, self._memory
        if name == "cp.async.commit_group":
            return memory.commit
        if name == "cp.async.wait_group":
            return lambda where: memory.wait(int(operands[0]), where)
        if re.fullmatch(r"cp\.async\.c[ag]\.shared(::cta)?\.global", name):
            return self._copy(instruction)
        match = re.fullmatch(r"(ld|st)(?:\.(param|global|shared|local))?(?:\.nc)?(?:\.v\d)?\.([a-z]\d+)", name)
        if match is None:
            return None
        return (self._load if match[1] == "ld" else self._store)(instruction, match[2] or "", match[3])

    def _copy(self, instruction: Instruction) -> Action:
        to, source = (address_of(operand, self._registers) for operand in instruction.operands[:2])
        if instruction.operands[2] != "16":
            raise NotImplementedError(str(instruction))
        count = self._registers.of((*instruction.operands, "16")[3], "u32")
        return lambda where: self._memory.copy(to(), source(), count.astype(np.int64), where)

    def _load(self, instruction: Instruction, space: str, kind: str) -> Action:
        targets = self._registers.to_fill(instruction.operands[0], kind)
        address = address_of(instruction.operands[1], self._registers)
        dtype = DTYPES[kind]

        def act(where: Any) -> None:
            begin = address()
            for n, target in enumerate(targets):
                found, lanes = self._memory.load(space, begin + n * dtype.itemsize, dtype, where)
                target[lanes] = found

        return act

    def _store(self, instruction: Instruction, space: str, kind: str) -> Action:
        names = instruction.operands[1].strip("{}").split(",")
        sources = [self._registers.low_part(name.strip(), kind) for name in names]
        address = address_of(instruction.operands[0], self._registers)

        def act(where: Any) -> None:
            begin = address()
            for n, source in enumerate(sources):
                self._memory.store(space, begin + n * source.itemsize, source, where)

        return act
