"""Where pieces of keys and values lie on a rank: its own in place, visiting ones in slots that are used again.

Slots are allocated once, as many and as long as the itinerary says (a ring needs two, whatever the rank count).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ringmpi.comm.protocol import Message
from ringmpi.core.itinerary import Hop, Itinerary
from ringmpi.core.schedule import Piece

Payload = tuple[Any, ...]  # the arrays that travel together, each [batch, heads, positions, dim]


class Slots:
    """The arrays of every piece that is on this rank, by piece."""

    def __init__(
        self, itinerary: Itinerary, pieces: tuple[Piece, ...], row_shapes: list[tuple[int, int, int]], dtype: np.dtype
    ) -> None:
        """`row_shapes`: (batch, heads, dim) of each array of the payload."""
        self._pieces = pieces
        self._row_shapes = row_shapes
        self._slot_of = itinerary.slot_of
        self._memory = [
            [np.empty(length * math.prod(shape), dtype) for shape in row_shapes] for length in itinerary.slot_lengths
        ]
        self._own: dict[int, Payload] = {}

    @property
    def nbytes(self) -> int:
        """Memory of all slots."""
        return sum(array.nbytes for slot in self._memory for array in slot)

    def adopt(self, piece: int, payload: Payload) -> None:
        """Let a piece of this rank lie where the caller has it. It is read, never written."""
        self._own[piece] = payload

    def payload(self, piece: int) -> Payload:
        """The arrays of a piece, contiguous."""
        if piece in self._own:
            return self._own[piece]
        length = self._pieces[piece].length
        return tuple(
            memory[: length * math.prod(shape)].reshape(*shape[:2], length, shape[2])
            for memory, shape in zip(self._memory[self._slot_of[piece]], self._row_shapes, strict=True)
        )

    def messages(self, hop: Hop) -> tuple[list[Message], list[Message]]:
        """What a hop sends and what it receives; the direction of travel is the tag."""
        return self._of(hop.sends), self._of(hop.receives)

    def _of(self, transfers: tuple[tuple[int, int], ...]) -> list[Message]:
        return [
            Message(peer, self._pieces[piece].direction % 3, array)
            for piece, peer in transfers
            for array in self.payload(piece)
        ]
