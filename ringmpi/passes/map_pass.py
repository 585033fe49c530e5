"""One rank's map pass: the ring loop once more, with the final log_sum_exp, for what each key receives.

Queries visit the keys, with log_sum_exp and nothing behind them; all sums stay where the keys are
(core/attention_map.py has the formula). The kernel is that of the backward pass, asked for gradients of values alone:
values of a few columns, one a query block, so that a call serves several blocks.

All arrays lie on the host, whatever the memory of the backend: each call takes other rows, keys and every nth head of
them, which arrays on a device do not let one cut out. A GPU has these parts copied to it in each call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.base import Backend, Poll
from ringmpi.comm.agreement import AgreeingRing, agree, together
from ringmpi.comm.protocol import Communicator, Flight
from ringmpi.core.attention_map import MapSums, RowGroup, row_groups
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.gradients import Gradients, Saved
from ringmpi.core.itinerary import AT_HOME, plan_itinerary
from ringmpi.core.problem import Problem
from ringmpi.core.ranges import positions_of
from ringmpi.core.rank_work import KeyWork
from ringmpi.core.schedule import Piece
from ringmpi.core.stages import MAP
from ringmpi.core.work import KEY_START, KEY_STOP, ROW_START, ROW_STOP, Work, counted_from, within_rows
from ringmpi.passes.before_the_loop import adopt_own, share_needs
from ringmpi.passes.counted_pass import CountedPass
from ringmpi.passes.finite import all_finite
from ringmpi.passes.guard import UNGUARDED, Guard
from ringmpi.passes.ring_loop import ring_loop
from ringmpi.passes.slots import Form, Payload, Slots, piece_loads
from ringmpi.passes.timeline import RankTimeline
from ringmpi.passes.visits import BEGINNING, VisitLog

COLUMNS = 16  # query blocks of a kernel call: as many columns as the kernels compute anyway


@dataclass(frozen=True)
class MapOperands:
    """The shards of one rank.

    q            [batch, query_heads, queries, head_dim]
    log_sum_exp  [batch, query_heads, queries], of the whole forward pass
    k            [batch, key_heads, keys, head_dim]
    """

    q: Any
    log_sum_exp: Any
    k: Any

    def all_finite(self) -> bool:
        """Whether nothing is NaN or inf; log_sum_exp is -inf where a row sees no key."""
        unusual = np.isnan(self.log_sum_exp) | np.isposinf(self.log_sum_exp)
        return all_finite(self.q, self.k) and not unusual.any()


class MapPass(CountedPass):
    """What the keys of one rank receive from the queries of the whole ring.

    Parameters
    ----------
    problem : Problem
        As `map_problem` gives it.
    pairs : int64 [pieces]
        Pairs of this rank with each piece of queries (`KeyWork.pairs`).
    needed : bool [size, pieces]
        Which rank has any pair with a piece.
    block : int or None
        Positions of a block of the map; None: no map, only what each key receives.

    Attributes
    ----------
    sums : MapSums
    """

    stage = MAP

    def __init__(
        self,
        problem: Problem,
        rank: int,
        backend: Backend,
        pairs: NDArray[np.int64],
        needed: NDArray[np.bool_],
        *,
        block: int | None,
    ) -> None:
        super().__init__(problem, rank, backend, pairs)
        self.block, self.pieces = block, problem.query_pieces
        self.itinerary = plan_itinerary(problem.schedule, self.pieces, needed, rank)
        self.slots = Slots(
            self.itinerary.slot_of, self.itinerary.slot_lengths, piece_loads(self.pieces), query_forms(problem)
        )
        self.visits = self.new_visits()
        self.timeline = RankTimeline(len(self.itinerary.steps), self.stage, backend.memory.named)
        self.after = AT_HOME
        self.sums = MapSums(problem.heads, problem.keys.positions(rank), problem.queries.length, block)

    def new_visits(self) -> VisitLog:
        """The visits of this pass, none made: where it begins, and where a checkpoint lets it begin again."""
        budget = self.backend.call_budget(self.problem.heads, self.problem.dtype)
        work = KeyWork(self.problem, self.rank)
        return VisitLog(work, self.pieces, staying_axis=KEY_START, budget=budget, whole=False)

    def loop(
        self, comm: Communicator, operands: MapOperands, finite: bool, guard: Guard = UNGUARDED
    ) -> Iterator[Flight]:
        """The ring loop over this pass. `finite`: nothing that any rank holds is NaN or inf."""
        own = operands.q, operands.log_sum_exp[..., None]
        adopt_own(self.slots, self.itinerary, self.pieces, own)

        def attend(piece: int, payload: Payload, poll: Poll) -> Iterator[int]:
            block_of = _block_of(self.pieces[piece], self.block)
            q, log_sum_exp = payload
            meeting = _Meeting(q, log_sum_exp, operands.k, finite, poll)

            def call(work: Work) -> int:
                start, stop = int(work[:, ROW_START].min()), int(work[:, ROW_STOP].max())
                groups = row_groups(block_of, start, stop, COLUMNS if finite else 1)
                return sum(self._add(group, work, meeting) for group in groups)

            return self.visits.attend(piece, guard, call)

        return ring_loop(self.itinerary, comm, self.slots, attend, timeline=self.timeline, guard=guard)

    def finish(self) -> MapSums:
        """What the keys of this rank have received.

        Raises
        ------
        ExactnessError
            If the kernels did not attend to exactly the pairs that the mask gives this rank.
        """
        self.check_counts()
        return self.sums

    def _add(self, group: RowGroup, work: Work, meeting: _Meeting) -> int:
        """The rows of some query blocks: one head of each group of heads at a time, as heads would be added up."""
        part = within_rows(work, group.start, group.stop)
        if not len(part):
            return 0
        keys = slice(int(part[:, KEY_START].min()), int(part[:, KEY_STOP].max()))
        local = counted_from(part, group.start, keys.start)
        share = self.problem.heads.group
        return sum(self._add_heads(slice(nth, None, share), group, keys, local, meeting) for nth in range(share))

    def _add_heads(self, heads: slice, group: RowGroup, keys: slice, work: Work, meeting: _Meeting) -> int:
        rows, scoring = slice(group.start, group.stop), self.problem.scoring
        q, log_sum_exp, k = meeting.q[:, heads, rows], meeting.log_sum_exp[:, heads, rows, 0], meeting.k[:, :, keys]
        wide, marks = log_sum_exp.dtype, group.marks(q.dtype)
        columns = marks.shape[1]
        mass = np.zeros((*k.shape[:3], columns), wide)
        saved = Saved(
            grad_output=np.broadcast_to(marks, (*q.shape[:3], columns)),
            log_sum_exp=log_sum_exp,
            delta=np.broadcast_to(wide.type(0), log_sum_exp.shape),
        )
        slopes = scoring.alibi_slopes
        pairs = self.backend.attend_backward(
            q,
            k,
            np.broadcast_to(k.dtype.type(0), mass.shape),
            saved,
            work,
            replace(scoring, alibi_slopes=None if slopes is None else slopes[heads]),
            into=Gradients(query=None, key=None, value=mass, slope=np.zeros(q.shape[1])),
            finite=meeting.finite,
            poll=meeting.poll,
        )
        self.sums.add(heads, keys, group.blocks, mass)
        return pairs


@dataclass(frozen=True)
class _Meeting:
    """A visit: queries and log_sum_exp [..., 1] of a piece, the keys of this rank."""

    q: Any
    log_sum_exp: Any
    k: Any
    finite: bool
    poll: Poll


def map_problem(problem: Problem) -> Problem:
    """The problem of the map pass: weights as they are without dropout, and no values but the marks of blocks."""
    heads, scoring = replace(problem.heads, value_dim=COLUMNS), replace(problem.scoring, dropout=0.0, seed=0)
    return problem.with_same_mask(heads=heads, scoring=scoring, absorbed=None, record=None)


def query_forms(problem: Problem) -> list[Form]:
    """What travels: Q, log_sum_exp."""
    heads, wide = problem.heads, accumulate_dtype(problem.dtype)
    return [
        Form(heads.batch, heads.query_heads, dim, dtype) for dim, dtype in ((heads.head_dim, problem.dtype), (1, wide))
    ]


def agree_on_map(ring: AgreeingRing, problem: Problem, backend: Backend, block: int | None) -> MapPass:
    """The MapPass of this rank, once all ranks are found to mean the same. Collective.

    Parameters
    ----------
    problem : Problem
        Of the forward pass.
    block : int or None
        Positions of a block of the map; None: only what each key receives.

    Raises
    ------
    RingError, ShapeError
        On all ranks.
    """
    problem = map_problem(problem)
    what = "problem (mask, shardings, dtype, heads, schedule or scores) or block"
    agree(ring, what, lambda: f"{problem.fingerprint()} {block}")
    pairs, needed = share_needs(ring, lambda: KeyWork(problem, ring.rank).pairs(), BEGINNING.left)
    return together(ring, "allocating memory", lambda: MapPass(problem, ring.rank, backend, pairs, needed, block=block))


def _block_of(piece: Piece, block: int | None) -> NDArray[np.int64]:
    """The query block of each row of a piece; all are one where there is no map."""
    positions = positions_of(piece.ranges)
    return positions // block if block else np.zeros_like(positions)
