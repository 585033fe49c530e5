"""One rank's backward pass: the ring loop once more, with gradients that follow what travels.

In a broadcast none follow: a pass then gives the gradients of what stays, and it takes two of them (travel.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.base import Backend, Poll
from ringmpi.comm.agreement import agree, together
from ringmpi.comm.protocol import Communicator, Flight, Tag
from ringmpi.core.gradient_routes import NO_GRADIENTS, arrived, follow, made, plan_gradients
from ringmpi.core.itinerary import Step, plan_itinerary
from ringmpi.core.problem import Problem
from ringmpi.core.work import cut
from ringmpi.ring_loop import ring_loop
from ringmpi.ring_pass import AgreeingRing, adopt_own, check_counts, one_path
from ringmpi.slots import Form, Load, Payload, Slots, TwoCargoes, piece_loads
from ringmpi.timeline import RankTimeline
from ringmpi.travel import Operands, Travel, ways_by_name


class BackwardPass:
    """The gradients of one rank's queries, keys and values.

    Parameters
    ----------
    travel : Travel
        Which side visits the other; the same on all ranks.
    pairs : int64 [pieces]
        Pairs of this rank with each visiting piece (`travel.work.pairs()`).
    needed : bool [size, pieces]
        Which rank works on which piece.
    """

    def __init__(
        self,
        problem: Problem,
        rank: int,
        backend: Backend,
        travel: Travel,
        pairs: NDArray[np.int64],
        needed: NDArray[np.bool_],
    ) -> None:
        self.problem, self.rank, self.backend, self.travel = problem, rank, backend, travel
        self.pairs_asked = int(pairs.sum()) * problem.heads.query_slabs
        pieces = plan_itinerary(problem.schedule, travel.pieces, needed, rank)
        self._gradients, self.itinerary = NO_GRADIENTS, pieces
        if problem.schedule.gradients_travel:
            self._gradients = plan_gradients(problem.schedule, travel.pieces, needed, rank)
            self.itinerary = follow(pieces, self._gradients)
        sums = [Load(piece.length, Tag.GRADIENTS) for piece in travel.pieces for _ in (made, arrived)]
        self.slots = TwoCargoes(
            Slots(pieces.slot_of, pieces.slot_lengths, piece_loads(travel.pieces), travel.forms()),
            Slots(self._gradients.slot_of, self._gradients.slot_lengths, sums, travel.gradient_forms()),
        )
        self.slope = np.zeros(problem.heads.query_heads)  # float64: one slope sums all pairs
        self.timeline = RankTimeline(len(self.itinerary.steps))
        self._staying: Payload = ()

    def loop(self, comm: Communicator, operands: Operands, finite: NDArray[np.bool_]) -> Iterator[Flight]:
        """The ring loop over this pass. `finite[r]`: nothing that rank r holds is NaN or inf."""
        scoring, budget = self.problem.scoring, self.backend.call_budget(self.problem.heads)
        only = self.travel.staying_axis if self.problem.reproducible else None
        finite = one_path(self.problem, finite)
        adopt_own(self.slots.pieces, self.itinerary, self.travel.pieces, self.travel.visitors(operands))
        self._staying = self.travel.staying(operands)

        def attend(piece: int, visitors: Payload, poll: Poll) -> Iterator[int]:
            block = self.travel.block(operands, visitors, self._staying, self._fresh(piece), self.slope)
            clean = bool(finite[self.travel.pieces[piece].owner] and finite[self.rank])
            for call in cut(self.travel.work.table(piece), budget, only=only):
                yield self.backend.attend_backward(
                    block.q, block.k, block.v, block.saved, call, scoring, into=block.into, finite=clean, poll=poll
                )

        return ring_loop(self.itinerary, comm, self.slots, attend, timeline=self.timeline, landed=self._add)

    def _fresh(self, piece: int) -> Payload:
        """Zeros for the gradients of a visitor; None where nothing follows it."""
        if not self.problem.schedule.gradients_travel:
            return (None,) * len(self.travel.gradient_forms())
        leaving = self.slots.gradients.payload(made(piece))
        for array in leaving:
            array[...] = 0
        return leaving

    def _add(self, step: Step) -> None:
        """Those who worked on a piece before have sent their sum: add it to the one made here."""
        for piece in self._gradients.additions.get(step.index, ()):
            sums = zip(
                self.slots.gradients.payload(made(piece)), self.slots.gradients.payload(arrived(piece)), strict=True
            )
            for mine, theirs in sums:
                mine += theirs

    @property
    def pairs_attended(self) -> int:
        """Pairs that the kernels counted, over batch and query heads."""
        return int(self.timeline.pairs_attended.sum())

    def finish(self) -> tuple[Any, Any, Any]:
        """Gradients of q, k and v of this rank, in the input dtype; None for what another pass gives.

        Raises
        ------
        ExactnessError
            If the kernels did not attend to exactly the pairs that the mask gives this rank.
        """
        check_counts(self.rank, self.pairs_attended, self.pairs_asked)
        grads = self.travel.query_key_value(self._staying, self._visitors())
        query, key, value = (None if grad is None else grad.astype(self.problem.dtype, copy=False) for grad in grads)
        return query, key, value

    def _visitors(self) -> Payload:
        """The gradients of what has travelled, home again; 0 where nobody worked on a piece."""
        if not self.problem.schedule.gradients_travel:
            return (None,) * len(self.travel.gradient_forms())
        length = self.travel.visiting.shard_length(self.rank)
        whole = tuple(_zeros(form, length) for form in self.travel.gradient_forms())
        for piece, load in self._gradients.home.items():
            done = 0
            for rows in self.travel.pieces[piece].rows:
                stop = done + rows.stop - rows.start
                for array, shard in zip(self.slots.gradients.payload(load), whole, strict=True):
                    shard[:, :, rows] = array[:, :, done:stop]
                done = stop
        return whole


def agree_on_backward(ring: AgreeingRing, problem: Problem, backend: Backend, travel: str) -> Iterator[BackwardPass]:
    """The passes of this rank, one after the other, once all ranks are found to mean the same. Collective.

    Each is to be driven to its end before the next one is asked for: so the memory of one is there at a time.

    Raises
    ------
    RingError, ShapeError
        On all ranks.
    """
    agree(ring, "problem or travel", problem.fingerprint() + travel)
    for way in together(ring, "choosing what travels", lambda: ways_by_name(travel, problem, ring.rank)):
        pairs = together(ring, "counting pairs", way.work.pairs)
        needed = np.stack(ring.exchange(pairs > 0, "counting pairs"))
        yield together(
            ring, "allocating memory", partial(BackwardPass, problem, ring.rank, backend, way, pairs, needed)
        )


def query_key_value_of(passes: Sequence[Sequence[Any]]) -> Iterator[Any]:
    """Gradients of q, k and v, each from the pass that gives it; `passes`: what `finish` of each has returned."""
    return (gradient for given in zip(*passes, strict=True) for gradient in given if gradient is not None)


def _zeros(form: Form, length: int) -> Any:
    return np.zeros((form.batch, form.heads, length, form.dim), form.dtype)
