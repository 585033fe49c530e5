"""Where pieces of keys and values lie on a rank: its own in place, visiting ones in slots that are used again.

Slots are allocated once, as many and as long as the itinerary says (a ring needs two, whatever the rank count).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ringmpi.backends.memory import HOST, Layout, Memory
from ringmpi.comm.protocol import Message, Tag
from ringmpi.core.gradient_routes import arrived, made
from ringmpi.core.itinerary import GRADIENTS, PIECES, Hop, Step
from ringmpi.core.schedule import Piece
from ringmpi.core.shapes import HeadShape

Payload = tuple[Any, ...]  # the arrays that travel together, each [batch, heads, positions, dim]


@dataclass(frozen=True)
class Form:
    """One array of a payload, but for its length. `aligned`: kernels fetch its rows, they do not add to them."""

    batch: int
    heads: int
    dim: int
    dtype: np.dtype
    aligned: bool = False

    def shape(self, length: int) -> tuple[int, int, int, int]:
        """Of an array of this length."""
        return self.batch, self.heads, length, self.dim

    def nbytes(self, length: int, layout: Layout = HOST) -> int:
        """What an array of this length takes."""
        return layout.nbytes(self.shape(length), self.dtype, aligned=self.aligned)


@dataclass(frozen=True)
class Load:
    """What can travel: how many positions, under which tag."""

    length: int
    tag: int


def key_forms(heads: HeadShape, dtype: np.dtype, *, aligned: bool = True) -> list[Form]:
    """Of keys and values; or, not `aligned`, of their gradients."""
    return [Form(heads.batch, heads.key_heads, dim, dtype, aligned) for dim in (heads.head_dim, heads.value_dim)]


def piece_loads(pieces: Sequence[Piece]) -> list[Load]:
    """Pieces as loads; the direction of travel is the tag."""
    return [Load(piece.length, Tag.UP if piece.direction > 0 else Tag.DOWN) for piece in pieces]


class Cargo(Protocol):
    """What the ring loop needs of memory."""

    def payload(self, load: int) -> Payload:
        """The arrays of a piece."""
        ...

    def messages(self, hop: Hop) -> tuple[list[Message], list[Message]]:
        """What a hop sends and what it receives."""
        ...

    def landed(self, step: Step) -> None:
        """All that is due after a step has landed: for payloads that add up on their way."""
        ...


class Slots:
    """The arrays of every load that is on this rank.

    Parameters
    ----------
    slot_of : dict
        Load -> slot.
    slot_lengths : sequence of int
        Positions that each slot must hold.
    loads : sequence of Load
    forms : sequence of Form
        Of the arrays that travel together.
    memory : Memory
        Where they lie.
    """

    def __init__(
        self,
        slot_of: dict[int, int],
        slot_lengths: Sequence[int],
        loads: Sequence[Load],
        forms: Sequence[Form],
        memory: Memory = HOST,
    ) -> None:
        self._slot_of = slot_of
        self._loads = loads
        self._forms = forms
        self.memory = memory
        self._rooms = [
            [memory.empty(form.shape(length), form.dtype, aligned=form.aligned) for form in forms]
            for length in slot_lengths
        ]
        self._own: dict[int, Payload] = {}

    @property
    def nbytes(self) -> int:
        """Memory of all slots."""
        return sum(array.nbytes for slot in self._rooms for array in slot)

    def adopt(self, load: int, payload: Payload) -> None:
        """Let a load of this rank lie where the caller has it on the host, or have a copy in another memory.

        It is read, never written.
        """
        arrays = zip(payload, self._forms, strict=True)
        self._own[load] = tuple(self.memory.put(array, aligned=form.aligned) for array, form in arrays)

    def payload(self, load: int) -> Payload:
        """The arrays of a load, contiguous."""
        if load in self._own:
            return self._own[load]
        length = self._loads[load].length
        return tuple(
            self.memory.shaped(room, form.shape(length))
            for room, form in zip(self._rooms[self._slot_of[load]], self._forms, strict=True)
        )

    def messages(self, hop: Hop) -> tuple[list[Message], list[Message]]:
        """What a hop sends and what it receives, array by array."""
        return self._of(hop.sends), self._of(hop.receives)

    def landed(self, step: Step) -> None:
        """Nothing to do."""

    def _of(self, transfers: tuple[tuple[int, int], ...]) -> list[Message]:
        return [Message(peer, self._loads[load].tag, array) for load, peer in transfers for array in self.payload(load)]


class TwoCargoes:
    """Pieces, and the gradients that follow them.

    Parameters
    ----------
    additions : mapping
        Step -> pieces of which the sum that has arrived is added to the one made here (core/gradient_routes.py).
    """

    def __init__(self, pieces: Slots, gradients: Slots, additions: Mapping[int, Sequence[int]]) -> None:
        self.pieces, self.gradients, self._additions = pieces, gradients, additions

    def payload(self, load: int) -> Payload:
        """The arrays of a piece."""
        return self.pieces.payload(load)

    def messages(self, hop: Hop) -> tuple[list[Message], list[Message]]:
        """What a hop sends and what it receives."""
        return {PIECES: self.pieces, GRADIENTS: self.gradients}[hop.cargo].messages(hop)

    def landed(self, step: Step) -> None:
        """Those who worked on a piece before have sent their sum: add it to the one made here."""
        for piece in self._additions.get(step.index, ()):
            sums = zip(self.gradients.payload(made(piece)), self.gradients.payload(arrived(piece)), strict=True)
            for mine, theirs in sums:
                self.gradients.memory.add(mine, theirs)
