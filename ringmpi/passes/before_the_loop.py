"""What passes do before their loop: find out how messages reach where arrays lie, and give own pieces their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.base import Backend
from ringmpi.comm.agreement import AgreeingRing, shared
from ringmpi.core.itinerary import Itinerary
from ringmpi.core.schedule import Piece
from ringmpi.passes.slots import Payload, Slots

Pairs: TypeAlias = NDArray[np.int64]
Needs: TypeAlias = NDArray[np.bool_]


def settle_memory(ring: AgreeingRing, backend: Backend) -> None:
    """Where arrays lie on devices: find out how messages reach them. Collective, once ranks agree on their memory."""
    if not backend.memory.on_host:
        from ringmpi.environment import device_messages  # asks programs that others have no need of

        device_messages.settle_devices(cast(device_messages.DeviceTransport, ring), backend.memory.device)


def share_needs(ring: AgreeingRing, count: Callable[[], Pairs], needs: Callable[[Pairs], Needs]) -> tuple[Pairs, Needs]:
    """Count the pairs of this rank with each piece, and tell all ranks which pieces it needs. Collective.

    Returns
    -------
    int64 [pieces], bool [size, pieces]
        This rank's pairs; the needs of all.
    """
    mine: list[Pairs] = []

    def counted() -> Needs:
        mine.append(count())
        return needs(mine[0])

    needed = np.stack(shared(ring, "counting pairs", counted))
    return mine[0], needed


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
