"""One rank's forward pass: agree with the others, prepare memory, run the loop, give the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.base import Backend, Poll
from ringmpi.comm.agreement import AgreeingRing, agree, together
from ringmpi.comm.device_ring import reaching
from ringmpi.comm.protocol import Communicator, Flight
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.itinerary import AT_HOME, plan_itinerary
from ringmpi.core.partial import Partial, empty_partial, finalize, finalize_record, merge, sink_partial
from ringmpi.core.problem import Problem
from ringmpi.core.rank_work import RankWork
from ringmpi.core.record import Record, uninitialised_record
from ringmpi.core.schedule import Piece
from ringmpi.core.stages import FORWARD
from ringmpi.core.work import ROW_START, Work
from ringmpi.passes.before_the_loop import adopt_own, settle_memory, share_needs
from ringmpi.passes.counted_pass import CountedPass
from ringmpi.passes.finite import one_path
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


class ForwardPass(CountedPass):
    """The attention of one rank's queries to the keys of the whole ring.

    Parameters
    ----------
    pairs : int64 [pieces]
        Pairs of this rank with each piece (`RankWork.pairs`).
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
        super().__init__(problem, rank, backend, pairs)
        self.memory, self.donated = backend.memory, donated
        self.visits = VisitLog(
            RankWork(problem, rank),
            problem.pieces,
            staying_axis=ROW_START,
            budget=backend.call_budget(problem.heads, problem.dtype),
            whole=problem.reproducible,
        )
        self.read_pieces = tuple(np.flatnonzero(needed.any(axis=0)).tolist())  # pieces of which some rank has need
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

    def finish(self) -> ForwardResult:
        """The result of this rank, once.

        Raises
        ------
        ExactnessError
            If the kernels did not attend to exactly the pairs that the mask gives this rank.
        """
        self.check_counts()
        keys = total = self.host_partial()
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):  # inf in the input may show in the output
            if self.problem.sink_logits is not None:
                total = merge(keys, sink_partial(self.problem.sink_logits, keys))
            record = finalize_record(keys, total)
            return ForwardResult(*finalize(total, self.problem.dtype), record)


def agree_on_forward(
    ring: AgreeingRing, problem: Problem, backend: Backend, *, donated: bool = False, start: Start = BEGINNING
) -> ForwardPass:
    """The ForwardPass of this rank, once all ranks are found to mean the same problem. Collective.

    Raises
    ------
    RingError, MaskError
        On all ranks.
    """
    rest = problem

    def meant() -> str:
        nonlocal rest
        rest = problem.without(start.absorbed)
        return f"{rest.fingerprint()} {backend.memory.layout}"

    agree(ring, "problem (mask, shardings, dtype, heads, schedule, scores, record, or backend)", meant)
    settle_memory(ring, backend)
    pairs, needed = share_needs(ring, lambda: RankWork(rest, ring.rank).pairs(), start.left)
    forward = together(
        ring, "allocating memory", lambda: ForwardPass(rest, ring.rank, backend, pairs, needed, donated=donated)
    )
    forward.visits.begin(start)
    return forward
