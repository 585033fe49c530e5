"""What passes do before their loop: find out how messages reach where arrays lie, and give own pieces their place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from ringmpi.backends.base import Backend
from ringmpi.comm.agreement import AgreeingRing
from ringmpi.core.itinerary import Itinerary
from ringmpi.core.schedule import Piece
from ringmpi.passes.slots import Payload, Slots


def settle_memory(ring: AgreeingRing, backend: Backend) -> None:
    """Where arrays lie on devices: find out how messages reach them. Collective, once ranks agree on their memory."""
    if not backend.memory.on_host:
        from ringmpi.environment import device_messages  # asks programs that others have no need of

        device_messages.settle_devices(cast(device_messages.DeviceTransport, ring), backend.memory.device)


def adopt_own(slots: Slots, itinerary: Itinerary, pieces: Sequence[Piece], arrays: Payload) -> None:
    """Let the pieces that a rank owns lie where the caller's arrays are, but for those that must be packed."""
    for index in itinerary.own:
        slots.adopt(index, tuple(_rows(array, pieces[index], itinerary, index) for array in arrays))


def _rows(array: Any, piece: Piece, itinerary: Itinerary, index: int) -> Any:
    length = array.shape[2]
    if piece.length == length:
        return np.ascontiguousarray(array)
    parts = [array[:, :, rows] for rows in piece.rows]
    return np.concatenate(parts, axis=2) if itinerary.is_packed(index, piece, length) else parts[0]
