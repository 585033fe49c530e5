"""Memory as a kernel sees it: the buffers of the device, shared memory of each block, the parameter.

Shared memory starts as NaN. An address out of bounds, or not a multiple of the size of an access, is an error.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.cuda.ptx.registers import Lanes

Bytes = NDArray[np.uint8]
PARAMETER, SHARED = 1 << 60, 1 << 61  # where they begin, shared memory among generic addresses


class PtxError(RuntimeError):
    """What a kernel must not do."""


@dataclass
class Copies:
    """Asynchronous copies of 16 bytes on their way, one a lane, and how many groups each lane has committed."""

    committed: NDArray[np.int64]
    pending: list[tuple[Lanes, Lanes, Lanes, Lanes, Lanes]]  # lane, to, from, bytes, group


class Memory:
    """All of it.

    Parameters
    ----------
    bounds : uint64 [n, 2]
        Addresses in this process where buffers of the device start and stop, ascending.
    argument : array
        The parameter's bytes.
    shared_bytes, grid, threads : int
    """

    def __init__(self, bounds: Any, argument: Any, shared_bytes: int, grid: int, threads: int) -> None:
        self._bounds = np.asarray(bounds, np.int64).reshape(-1, 2)
        self._low = int(self._bounds.min(initial=1 << 62)) // 64 * 64
        span = max(int(self._bounds.max(initial=0)) - self._low, 0) // 64 * 64 + 64
        self._global: Bytes = np.ctypeslib.as_array((ctypes.c_uint8 * span).from_address(self._low))
        self._parameter: Bytes = np.frombuffer(argument.tobytes() + bytes(-argument.nbytes % 8), np.uint8)
        self._shared_bytes = shared_bytes
        self._room = (shared_bytes + 63) // 16 * 16
        self._shared: Bytes = np.full(grid * self._room, 255, np.uint8)
        self._block = np.arange(grid * threads) // threads * self._room
        self._copies = Copies(np.zeros(grid * threads, np.int64), [])

    def load(self, space: str, address: Lanes, dtype: np.dtype, where: Any) -> tuple[Any, Any]:
        """(numbers, which lanes they are for): `where` itself, or all."""
        lanes = np.flatnonzero(where) if where is not True else slice(None)
        memory, index = self._place(space, address[lanes], lanes, dtype.itemsize)
        return memory.view(dtype)[index], lanes

    def store(self, space: str, address: Lanes, numbers: Lanes, where: Any) -> None:
        """Write `numbers` of the lanes `where`."""
        lanes = np.flatnonzero(where) if where is not True else slice(None)
        memory, index = self._place(space, address[lanes], lanes, numbers.itemsize)
        memory.view(numbers.dtype)[index] = numbers[lanes]

    def rows(self, address: Lanes, lanes: Any) -> NDArray[np.uint16]:
        """16 bytes of shared memory for each lane, as 8 numbers of 16 bit: ldmatrix."""
        _, index = self._place("shared", address[lanes], lanes, 16)
        return self._shared.view(np.uint16).reshape(-1, 8)[index]

    def copy(self, to: Lanes, source: Lanes, count: Lanes, where: Any) -> None:
        """cp.async of 16 bytes, `count` of them from `source` and zeros for the rest; NaN until it lands."""
        lanes = np.flatnonzero(where) if where is not True else np.arange(len(to))
        _, target = self._place("shared", to[lanes], lanes, 16)
        some = count[lanes] > 0
        self._place("global", source[lanes][some], lanes[some], 16)
        self._shared.reshape(-1, 16)[target] = 255
        self._copies.pending.append((lanes, target, source[lanes], count[lanes], self._copies.committed[lanes]))

    def commit(self, where: Any) -> None:
        """cp.async.commit_group."""
        self._copies.committed[slice(None) if where is True else where] += 1

    def wait(self, groups: int, where: Any) -> None:
        """cp.async.wait_group: all but the last `groups` of a lane have landed."""
        left = []
        for lanes, target, source, count, group in self._copies.pending:
            due = group < self._copies.committed[lanes] - groups
            if where is not True:
                due = due & where[lanes]
            self._land(target[due], source[due], count[due])
            if not due.all():
                left.append(tuple(x[~due] for x in (lanes, target, source, count, group)))
        self._copies.pending = left  # type: ignore[assignment]

    def end(self) -> None:
        """All threads have ended: nothing may be on its way."""
        if self._copies.pending:
            raise PtxError("a copy is still on its way when its thread ends")

    def _land(self, target: Lanes, source: Lanes, count: Lanes) -> None:
        pieces = np.zeros((len(target), 16), np.uint8)
        some = count > 0
        pieces[some] = self._global[(source[some] - self._low)[:, None] + np.arange(16)]
        pieces[np.arange(16) >= count[:, None]] = 0
        self._shared.reshape(-1, 16)[target] = pieces

    def _place(self, space: str, address: Lanes, lanes: Any, size: int) -> tuple[Bytes, Lanes]:
        """(memory, index in units of `size`) of addresses in a state space; "": generic ones."""
        if space == "":
            of_shared = address >= SHARED
            if of_shared.any() != of_shared.all():
                raise NotImplementedError("one access to shared and to global memory")
            space = "shared" if of_shared.any() else "global"
            address = address - SHARED * of_shared
        if (address % size).any():
            raise PtxError(f"an address is no multiple of {size}, in {space} memory")
        if space == "param":
            return self._parameter, (address - PARAMETER) // size
        if space == "shared":
            if len(address) and (address.min() < 0 or address.max() + size > self._shared_bytes):
                raise PtxError(f"byte {int(address.max())} of {self._shared_bytes} bytes of shared memory")
            return self._shared, (address + self._block[lanes]) // size
        if space != "global":
            raise NotImplementedError(f"memory of the space {space}")
        buffer = np.searchsorted(self._bounds[:, 0], address, "right") - 1
        if (buffer < 0).any() or (address + size > self._bounds[buffer, 1]).any():
            raise PtxError("an access to global memory out of bounds")
        return self._global, (address - self._low) // size
