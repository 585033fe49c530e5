"""One rank's backward pass: the ring loop once more, with gradients that follow what travels.

In a broadcast none follow: a pass then gives the gradients of what stays, and it takes two of them (travel.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.base import Backend, Poll
from ringmpi.comm.agreement import AgreeingRing, agree, together
from ringmpi.comm.device_ring import reaching
from ringmpi.comm.protocol import Communicator, Flight, Tag
from ringmpi.core.gradient_routes import NO_GRADIENTS, arrived, follow, made, plan_after, plan_gradients
from ringmpi.core.itinerary import AT_HOME, plan_itinerary
from ringmpi.core.problem import Problem
from ringmpi.core.stages import BACKWARD, one_sided
from ringmpi.core.work import Work
from ringmpi.passes.before_the_loop import adopt_own, settle_memory, share_needs
from ringmpi.passes.counted_pass import CountedPass
from ringmpi.passes.finite import one_path
from ringmpi.passes.guard import UNGUARDED, Guard
from ringmpi.passes.ring_loop import ring_loop
from ringmpi.passes.slots import Form, Load, Payload, Slots, TwoCargoes, piece_loads
from ringmpi.passes.timeline import RankTimeline
from ringmpi.passes.travel import Operands, Travel, staying_zeros, ways_by_name
from ringmpi.passes.visits import BEGINNING, Start, VisitLog


class BackwardPass(CountedPass):
    """The gradients of one rank's queries, keys and values.

    Parameters
    ----------
    travel : Travel
        Of this rank: which side visits the other, the same on all ranks.
    pairs : int64 [pieces]
        Pairs of this rank with each visiting piece (`travel.work.pairs()`).
    needed : bool [size, pieces]
        Which rank works on which piece.
    after : int
        The last ring step that a run before this one has done (where gradients travel), and the same on all ranks.
    """

    def __init__(
        self,
        problem: Problem,
        backend: Backend,
        travel: Travel,
        pairs: NDArray[np.int64],
        needed: NDArray[np.bool_],
        *,
        after: int = AT_HOME,
    ) -> None:
        rank, memory = travel.rank, backend.memory
        super().__init__(problem, rank, backend, pairs)
        self.travel, self.memory = travel, memory
        pieces = plan_itinerary(problem.schedule, travel.pieces, needed, rank)
        self._gradients, self.itinerary, self.after = NO_GRADIENTS, pieces, AT_HOME
        if problem.schedule.gradients_travel:
            self.after = after
            self._gradients = plan_after(plan_gradients(problem.schedule, travel.pieces, needed, rank), after)
            self.itinerary = follow(pieces, self._gradients, after=after)
        sums = [Load(piece.length, Tag.GRADIENTS) for piece in travel.pieces for _ in (made, arrived)]
        self.slots = TwoCargoes(
            Slots(pieces.slot_of, pieces.slot_lengths, piece_loads(travel.pieces), travel.forms(), memory),
            Slots(self._gradients.slot_of, self._gradients.slot_lengths, sums, travel.gradient_forms(), memory),
            self._gradients.additions,
        )
        self.visits = VisitLog(
            travel.work,
            travel.pieces,
            staying_axis=travel.staying_axis,
            budget=backend.call_budget(problem.heads, problem.dtype),
            whole=problem.reproducible,
        )
        self.slope = np.zeros(problem.heads.query_heads)  # float64: one slope sums all pairs
        self.timeline = RankTimeline(len(self.itinerary.steps), self.stage, self.memory.named)
        self.staying: Payload = tuple(map(memory.put, staying_zeros(travel)))
        self.earlier: Payload | None = None

    def loop(
        self, comm: Communicator, operands: Operands, finite: NDArray[np.bool_], guard: Guard = UNGUARDED
    ) -> Iterator[Flight]:
        """The ring loop over this pass. `finite[r]`: nothing that rank r holds is NaN or inf."""
        finite = one_path(self.problem, finite)
        adopt_own(self.slots.pieces, self.itinerary, self.travel.pieces, self.travel.visitors(operands))
        operands = self.travel.resident_in(self.memory, operands)

        def attend(piece: int, visitors: Payload, poll: Poll) -> Iterator[int]:
            block = self.travel.block(operands, visitors, self.staying, self._fresh(piece), self.slope)
            clean = bool(finite[self.travel.pieces[piece].owner] and finite[self.rank])

            def call(work: Work) -> int:
                return self.backend.attend_backward(
                    block.q,
                    block.k,
                    block.v,
                    block.saved,
                    work,
                    self.problem.scoring,
                    into=block.into,
                    finite=clean,
                    poll=poll,
                )

            return self.visits.attend(piece, guard, call)

        ring = reaching(self.memory.ferry, comm)
        return ring_loop(self.itinerary, ring, self.slots, attend, timeline=self.timeline, guard=guard)

    @property
    def stage(self) -> str:
        """What it is called among the stages of a run."""
        return stage_name(self.travel, self.problem)

    def kept(self, step: int) -> dict[int, Payload]:
        """Load -> the sums of gradients that lie on this rank at the end of a ring step, and nowhere else."""
        loads = (load for load, steps in self._gradients.kept.items() if step in steps)
        return {load: self.slots.gradients.payload(load) for load in loads}

    @property
    def gradient_bytes(self) -> int:
        """Of the slots of gradients, and of what runs of other layouts have summed."""
        return self.slots.gradients.nbytes + sum(int(array.nbytes) for array in self.earlier or ())

    def _fresh(self, piece: int) -> Payload:
        """Zeros for the gradients of a visitor; None where nothing follows it."""
        if not self.problem.schedule.gradients_travel:
            return (None,) * len(self.travel.gradient_forms())
        leaving = self.slots.gradients.payload(made(piece))
        for array in leaving:
            self.memory.clear(array)
        return leaving

    def finish(self) -> tuple[Any, Any, Any]:
        """Gradients of q, k and v of this rank, in the input dtype; None for what another pass gives.

        Raises
        ------
        ExactnessError
            If the kernels did not attend to exactly the pairs that the mask gives this rank.
        """
        self.check_counts()
        staying = tuple(map(self.memory.get, self.staying))
        grads = self.travel.query_key_value(staying, self._visitors())
        query, key, value = (None if grad is None else grad.astype(self.problem.dtype, copy=False) for grad in grads)
        return query, key, value

    def _visitors(self) -> Payload:
        """The gradients of what has travelled, home again; 0 where nobody worked on a piece."""
        if not self.problem.schedule.gradients_travel:
            return (None,) * len(self.travel.gradient_forms())
        whole = self.travelling_zeros()
        for piece, load in self._gradients.home.items():
            done, arrays = 0, tuple(map(self.memory.get, self.slots.gradients.payload(load)))
            for rows in self.travel.pieces[piece].rows:
                stop = done + rows.stop - rows.start
                for array, shard in zip(arrays, whole, strict=True):
                    shard[:, :, rows] = array[:, :, done:stop]
                done = stop
        for mine, before in zip(whole, self.earlier or (), strict=False):
            mine += before
        return whole

    def travelling_zeros(self) -> Payload:
        """Zeros for the gradients of this rank's positions on the side that travels."""
        length = self.travel.visiting.shard_length(self.rank)
        return tuple(_zeros(form, length) for form in self.travel.gradient_forms())


def agree_on_backward(
    ring: AgreeingRing,
    problem: Problem,
    backend: Backend,
    travel: str,
    start_of: Callable[[str], Start | None] = lambda stage: BEGINNING,
) -> Iterator[BackwardPass]:
    """The passes of this rank, one after the other, once all ranks are found to mean the same. Collective.

    Each is to be driven to its end before the next one is asked for: so the memory of one is there at a time.

    Parameters
    ----------
    start_of : function (stage) -> Start or None
        Where the pass of this name (`stage_name`) begins; None: it is over already.

    Raises
    ------
    RingError, ShapeError
        On all ranks.
    """
    what = "problem or travel (or backend)"
    agree(ring, what, lambda: f"{problem.fingerprint()}{travel} {backend.memory.layout}")
    settle_memory(ring, backend)
    for whole in together(ring, "choosing what travels", lambda: ways_by_name(travel, problem, ring.rank)):
        start = start_of(stage_name(whole, problem))
        if start is None:
            continue
        rest = together(ring, "looking at what is left", partial(problem.without, start.absorbed))
        way = type(whole)(rest, ring.rank)
        needs = (BEGINNING if problem.schedule.gradients_travel else start).left
        pairs, needed = share_needs(ring, way.work.pairs, needs)
        make = partial(BackwardPass, rest, backend, way, pairs, needed, after=start.after)
        backward = together(ring, "allocating memory", make)
        backward.visits.begin(start)
        yield backward
        del backward  # its memory is to be gone before the next one takes its own


def stage_name(travel: Travel, problem: Problem) -> str:
    """What a backward pass is called among the stages of a run."""
    return BACKWARD if problem.schedule.gradients_travel else one_sided(travel.name)


def query_key_value_of(passes: Sequence[Sequence[Any]]) -> Iterator[Any]:
    """Gradients of q, k and v, each from the pass that gives it; `passes`: what `finish` of each has returned."""
    return (gradient for given in zip(*passes, strict=True) for gradient in given if gradient is not None)


def _zeros(form: Form, length: int) -> Any:
    return np.zeros((form.batch, form.heads, length, form.dim), form.dtype)
