"""One rank's forward pass: agree with the others, prepare memory, run the loop, give the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.base import Backend, Poll
from ringmpi.comm.agreement import Exchanges, agree, together
from ringmpi.comm.device_ring import reaching
from ringmpi.comm.protocol import Communicator, Flight
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.itinerary import AT_HOME, Itinerary, plan_itinerary
from ringmpi.core.partial import Partial, empty_partial, finalize, finalize_record, merge, sink_partial
from ringmpi.core.problem import Problem
from ringmpi.core.record import Record, uninitialised_record
from ringmpi.core.schedule import Piece
from ringmpi.core.stages import FORWARD
from ringmpi.core.work import ROW_START, Work
from ringmpi.errors import ExactnessError
from ringmpi.passes.guard import UNGUARDED, Guard
from ringmpi.passes.ring_loop import ring_loop
from ringmpi.passes.slots import Payload, Slots, key_forms, piece_loads
from ringmpi.passes.timeline import RankTimeline
from ringmpi.passes.visits import BEGINNING, Start, VisitLog


class ForwardResult(NamedTuple):
    """What a forward pass gives of a rank's queries.

    output       [batch, query_heads, queries, value_dim]   input dtype
    log_sum_exp  [batch, query_heads, queries]              accumulation dtype
    record       None where the problem asks for none
    """

    output: Any
    log_sum_exp: Any
    record: Record | None

    @property
    def arrays(self) -> list[Any]:
        """All of them."""
        return [self.output, self.log_sum_exp, *(self.record.arrays if self.record else ())]


def empty_result(problem: Problem, rows: int) -> ForwardResult:
    """Arrays to be filled, of so many queries."""
    heads, wide = problem.heads, accumulate_dtype(problem.dtype)
    shape = (heads.batch, heads.query_heads, rows)
    record = None if problem.record is None else uninitialised_record(shape, wide)
    return ForwardResult(np.empty((*shape, heads.value_dim), problem.dtype), np.empty(shape, wide), record)


class ForwardPass:
    """The attention of one rank's queries to the keys of the whole ring.

    Parameters
    ----------
    pairs : int64 [pieces]
        Pairs of this rank with each piece (`Problem.work_of(rank).pairs()`).
    needed : bool [size, pieces]
        Which rank has any pair with a piece; what all ranks have counted, put together.
    donated : bool
        The rank's own keys and values lie in the slots (write them into `own_payloads()` before the loop), so that
        a rank never holds more than its shard and the slots.
    """

    stage = FORWARD

    def __init__(
        self,
        problem: Problem,
        rank: int,
        backend: Backend,
        pairs: NDArray[np.int64],
        needed: NDArray[np.bool_],
        *,
        donated: bool = False,
    ) -> None:
        self.problem = problem
        self.rank = rank
        self.backend, self.memory = backend, backend.memory
        self.donated = donated
        self.visits = VisitLog(
            problem.work_of(rank),
            problem.pieces,
            staying_axis=ROW_START,
            budget=backend.call_budget(problem.heads, problem.dtype),
            whole=problem.reproducible,
        )
        self.read_pieces = tuple(np.flatnonzero(needed.any(axis=0)).tolist())  # pieces of which some rank has need
        self.pairs_asked = int(pairs.sum()) * problem.heads.query_slabs
        self.itinerary = plan_itinerary(problem.schedule, problem.pieces, needed, rank, donated=donated)
        self.slots = Slots(
            self.itinerary.slot_of,
            self.itinerary.slot_lengths,
            piece_loads(problem.pieces),
            key_forms(problem.heads, problem.dtype),
            self.memory,
        )
        self.timeline = RankTimeline(len(self.itinerary.steps), self.stage, self.memory.named)
        self.after = AT_HOME  # its state is whole anywhere: no step has to be done again
        heads = problem.heads
        rows, wide = problem.queries.shard_length(rank), accumulate_dtype(problem.dtype)
        empty = empty_partial(heads.batch, heads.query_heads, rows, heads.value_dim, wide, recording=problem.record)
        self.partial = empty.moved(self.memory.put)

    def own_payloads(self) -> Iterator[tuple[Piece, Payload]]:
        """The rank's own pieces, with the slots that wait for their keys and values (`donated` passes)."""
        for piece in self.itinerary.own:
            yield self.problem.pieces[piece], self.slots.payload(piece)

    def own_rooms(self) -> list[Payload]:
        """Arrays on the host for what `own_payloads` wait for: these themselves, where they are there."""
        if self.memory.on_host:
            return [payload for _, payload in self.own_payloads()]
        return [tuple(np.empty(there.shape, there.dtype) for there in payload) for _, payload in self.own_payloads()]

    def fill_own(self, rooms: Sequence[Payload]) -> None:
        """Take keys and values to where they are waited for, from the filled `own_rooms`."""
        for (_, payload), room in zip(self.own_payloads(), rooms, strict=True):
            for there, host in zip(payload, room, strict=True):
                self.memory.write(there, host)

    def adopt(self, k: Any, v: Any) -> None:
        """Take the rank's keys and values where they lie; parts of them are copied only where they must be packed."""
        adopt_own(self.slots, self.itinerary, self.problem.pieces, (k, v))

    def loop(self, comm: Communicator, q: Any, finite: NDArray[np.bool_], guard: Guard = UNGUARDED) -> Iterator[Flight]:
        """The ring loop over this pass. `finite[r]`: the keys and values of rank r hold no NaN and no inf."""
        finite = one_path(self.problem, finite)
        q = self.memory.put(q, aligned=True)

        def attend(piece: int, payload: Payload, poll: Poll) -> Iterator[int]:
            k, v = payload
            all_finite = bool(finite[self.problem.pieces[piece].owner])

            def call(work: Work) -> int:
                _, pairs = self.backend.attend(
                    q, k, v, work, self.problem.scoring, finite=all_finite, into=self.partial, poll=poll
                )
                return pairs

            return self.visits.attend(piece, guard, call)

        ring = reaching(self.memory.ferry, comm)
        return ring_loop(self.itinerary, ring, self.slots, attend, timeline=self.timeline, guard=guard)

    def host_partial(self) -> Partial:
        """The sums of this rank, to be read; where `memory` is that of the host they are not copied."""
        return self.partial.moved(self.memory.get)

    def go_on_from(self, partial: Partial) -> None:
        """Take the sums of a run before this one; `partial`: what `host_partial` has given, filled."""
        self.partial = partial.moved(self.memory.put)

    @property
    def pairs_attended(self) -> int:
        """Pairs that the kernels counted, over batch and query heads; also those that a run before has counted."""
        return self.visits.pairs

    def finish(self) -> ForwardResult:
        """The result of this rank, once.

        Raises
        ------
        ExactnessError
            If the kernels did not attend to exactly the pairs that the mask gives this rank.
        """
        check_counts(self.rank, self.pairs_attended, self.pairs_asked)
        keys = total = self.host_partial()
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):  # inf in the input may show in the output
            if self.problem.sink_logits is not None:
                total = merge(keys, sink_partial(self.problem.sink_logits, keys))
            record = finalize_record(keys, total)
            return ForwardResult(*finalize(total, self.problem.dtype), record)


def check_counts(rank: int, attended: int, asked: int) -> None:
    """ExactnessError where the kernels of a rank did not attend to exactly what they were asked."""
    if attended != asked:
        raise ExactnessError(
            f"rank {rank} attended to {attended:,} pairs, {asked:,} were asked: the result would be wrong and is not "
            f"given. Please report this with the output of `ringmpi --version`."
        )


class AgreeingRing(Communicator, Exchanges, Protocol):
    """A transport over which ranks can also come to agreements."""


def agree_on_pass(
    ring: AgreeingRing, problem: Problem, backend: Backend, *, donated: bool = False, start: Start = BEGINNING
) -> ForwardPass:
    """The ForwardPass of this rank, once all ranks are found to mean the same problem. Collective.

    Raises
    ------
    RingError, MaskError
        On all ranks.
    """
    problem = problem.without(start.absorbed)
    meant = f"{problem.fingerprint()} {backend.memory.layout}"
    agree(ring, "problem (mask, shardings, dtype, heads, schedule, scores, record, or backend)", meant)
    settle_memory(ring, backend)
    pairs = together(ring, "counting pairs", lambda: problem.work_of(ring.rank).pairs())
    needed = np.stack(ring.exchange(start.left(pairs), "counting pairs"))
    forward = together(
        ring, "allocating memory", lambda: ForwardPass(problem, ring.rank, backend, pairs, needed, donated=donated)
    )
    forward.visits.begin(start)
    return forward


def settle_memory(ring: AgreeingRing, backend: Backend) -> None:
    """Where arrays lie on devices: find out how messages reach them. Collective, once ranks agree on their memory."""
    if not backend.memory.on_host:
        from ringmpi.passes.device_messages import (  # asks programs that others have no need of
            DeviceRing,
            settle_devices,
        )

        settle_devices(cast(DeviceRing, ring), backend.memory.device)


def share_finite(ring: Exchanges, arrays: Sequence[Any]) -> NDArray[np.bool_]:
    """Which ranks hold neither NaN nor inf in these arrays, bool [size]. Collective."""
    return np.array(ring.exchange(all_finite(*arrays), "looking for NaN and inf"), np.bool_)


def one_path(problem: Problem, finite: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """`finite`; where equal bits are asked for, all ranks take one path of the kernel, whoever holds NaN."""
    return finite & finite.all() if problem.reproducible else finite


def all_finite(*arrays: Any) -> bool:
    """Whether no array holds NaN or inf; looks at one head at a time, to stay small."""
    with np.errstate(over="ignore", invalid="ignore"):
        return all(_is_finite(head) for array in arrays for batch in array for head in batch)


def _is_finite(head: Any) -> bool:
    """The sum is quick, and finite only where all is; where it is not, it may have overflowed."""
    return bool(np.isfinite(head.sum(dtype=accumulate_dtype(head.dtype)))) or bool(np.isfinite(head).all())


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
