"""How much memory of its GPU a rank needs, and how much pinned memory of the host for messages that go by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringmpi.backends.memory import DeviceLayout, pinned_bytes
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.itinerary import GRADIENTS, PIECES, Hop, Itinerary
from ringmpi.core.problem import Problem
from ringmpi.core.schedule import Piece
from ringmpi.passes.slots import Form, key_forms
from ringmpi.passes.travel import Travel

LAYOUT = DeviceLayout()


@dataclass(frozen=True)
class GpuMemory:
    """Bytes of one rank in one pass. Not in it: CUDA itself (300 to 600 MB a process), and tables of the calls.

    resident : queries; in a backward pass all that does not travel
    own : what of its own travels; 0 where it lies in slots
    slots : what visits; and in a backward pass the gradients that follow it
    sums : row_max, row_sum, weighted_sum, or gradients of what does not travel, in the accumulation dtype
    pinned : of the host: the most that messages have under way by it; 0 are used where MPI takes GPU memory
    """

    resident: int
    own: int
    slots: int
    sums: int
    pinned: int

    @property
    def peak(self) -> int:
        """On the GPU; all is there until the pass is over."""
        return self.resident + self.own + self.slots + self.sums


def gpu_forward(problem: Problem, itinerary: Itinerary, *, gradients: bool = False) -> GpuMemory:
    """Of the rank of `itinerary` in its forward pass. `gradients`: a backward pass follows, as in `rank_memory`."""
    heads, wide = problem.heads, accumulate_dtype(problem.dtype)
    rows, forms = problem.queries.shard_length(itinerary.rank), key_forms(heads, problem.dtype)
    return GpuMemory(
        resident=Form(heads.batch, heads.query_heads, heads.head_dim, problem.dtype, aligned=True).nbytes(rows, LAYOUT),
        own=_own(itinerary, problem.pieces, forms) if gradients else 0,
        slots=_bytes(forms, itinerary.slot_lengths),
        sums=heads.query_slabs * rows * (heads.value_dim + 2) * wide.itemsize,
        pinned=_pinned(itinerary, {PIECES: [(piece.length, forms) for piece in problem.pieces]}),
    )


def gpu_backward(travel: Travel, itinerary: Itinerary, gradient_slots: Sequence[int]) -> GpuMemory:
    """Of the rank of `travel` in a backward pass.

    Parameters
    ----------
    itinerary : Itinerary
        With the hops of the gradients that follow, where they do (core/gradient_routes.py).
    gradient_slots : sequence of int
        Positions that the slots of these gradients hold.
    """
    forms, gradients, length = travel.forms(), travel.gradient_forms(), travel.resident.shard_length(travel.rank)
    loads = [(piece.length, gradients) for piece in travel.pieces for _ in range(2)]  # made here, and arrived
    return GpuMemory(
        resident=_bytes(travel.resident_forms(), [length]),
        own=_own(itinerary, travel.pieces, forms),
        slots=_bytes(forms, itinerary.slot_lengths) + _bytes(gradients, gradient_slots),
        sums=_bytes(travel.staying_forms(), [length]),
        pinned=_pinned(itinerary, {PIECES: [(piece.length, forms) for piece in travel.pieces], GRADIENTS: loads}),
    )


def _own(itinerary: Itinerary, pieces: Sequence[Piece], forms: Sequence[Form]) -> int:
    return _bytes(forms, [pieces[index].length for index in itinerary.own])


def _bytes(forms: Sequence[Form], lengths: Sequence[int]) -> int:
    return sum(form.nbytes(length, LAYOUT) for form in forms for length in lengths)


def _pinned(itinerary: Itinerary, loads: Mapping[str, Sequence[tuple[int, Sequence[Form]]]]) -> int:
    """Rooms that messages of a pass ask for: one a message under way, used again by later ones of its length."""
    made, free, due = 0, Counter[int](), dict[int, Counter[int]]()
    for step in itinerary.steps:
        free += due.pop(step.index, Counter())
        for hop in step.hops:
            rooms = _rooms(hop, loads[hop.cargo])
            missing = rooms - free
            made += sum(pinned_bytes(nbytes) * count for nbytes, count in missing.items())
            free = free + missing - rooms
            due[hop.due] = due.get(hop.due, Counter()) + rooms
    return made


def _rooms(hop: Hop, loads: Sequence[tuple[int, Sequence[Form]]]) -> Counter[int]:
    lengths = (loads[load] for load, _ in (*hop.sends, *hop.receives))
    return Counter(form.nbytes(length, LAYOUT) for length, forms in lengths for form in forms)
