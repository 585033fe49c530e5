"""The late record of a run: a map pass, and the top keys of chosen rows. Whole arrays on rank 0."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.checkpoint.saved_state import map_state
from ringmpi.comm.agreement import LONG_WORK, together
from ringmpi.comm.protocol import Flight
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.late_recording import LateRecording
from ringmpi.core.problem import Problem
from ringmpi.core.stages import FORWARD, MAP
from ringmpi.core.top_keys import ChosenRows, TopKeys, merged_top_keys, top_keys_of
from ringmpi.job import progress
from ringmpi.job.job import Job
from ringmpi.numbers import size
from ringmpi.passes.forward_pass import ForwardResult
from ringmpi.passes.guard import UNGUARDED, Guard
from ringmpi.passes.map_gathering import CollectingRing, gather_map, gather_received
from ringmpi.passes.map_pass import MapOperands, MapPass, agree_on_map
from ringmpi.passes.timeline import RankTimeline
from ringmpi.planner.map_memory import map_memory
from ringmpi.storage.record_layout import RECEIVED, RECORDED_MAP, TOP_KEYS, TOP_ROWS, TOP_WEIGHTS

log = logging.getLogger("ringmpi")
CHOOSING = "finding the top keys"
Array = NDArray[Any]


@dataclass
class LateResult:
    """What was recorded.

    Attributes
    ----------
    arrays : dict
        By the name that they have in the output, with a batch axis; on rank 0, none elsewhere.
    timeline : RankTimeline or None
        Of the map pass; None where there was none.
    memory : int
        The most that the arrays of this rank needed at once, bytes.
    """

    arrays: dict[str, Array] = field(default_factory=dict)
    timeline: RankTimeline | None = None
    memory: int = 0


def record_late(job: Job, asked: LateRecording, arrays: dict[str, Array], rows: ForwardResult) -> LateResult | None:
    """Record what needs the final log_sum_exp. Collective.

    Parameters
    ----------
    arrays : dict
        "query" and "key" of this rank.
    rows : ForwardResult

    Returns
    -------
    LateResult or None
        None where the run was stopped, on all ranks alike.
    """
    transport, problem, found = job.ring.transport, job.question.problem, LateResult()
    operands = MapOperands(arrays["query"], rows.log_sum_exp, arrays["key"])
    if asked.has_map_pass:
        one = agree_on_map(transport, problem, job.backend, asked.map_block)
        needs = map_memory(problem, one.itinerary, asked.map_block, gradients=job.travel is not None)
        found.timeline, found.memory = one.timeline, needs.peak
        log.info("map pass: queries travel, %s of arrays on rank 0", size(found.memory))
        finite = all(transport.exchange(operands.all_finite(), "looking for NaN and inf"))
        with progress.shown(one.timeline, one.pairs_asked):
            if not _drive(job, one, partial(one.loop, transport, operands, finite), rows):
                return None
        found.arrays |= _gathered(transport, one, asked)
    if asked.top_rows is not None:
        found.arrays |= record_top_keys(transport, problem, asked, operands)
    return found


def _drive(job: Job, one: MapPass, loop: Callable[[Guard], Iterator[Flight]], rows: ForwardResult) -> bool:
    """Run the loop; False where the run was stopped.

    A run that goes on in its backward pass makes the map again, and does not save meanwhile: the state of the backward
    pass is what it would lose.
    """
    past = job.keeper.past
    if past and past.stage not in (FORWARD, MAP):
        job.ring.transport.drive(loop(UNGUARDED), one.timeline.where)
        return True
    return job.keeper.drive(one, loop, lambda: map_state(one, rows), anywhere=True)


def _gathered(transport: CollectingRing, one: MapPass, asked: LateRecording) -> dict[str, Array]:
    sums, dtype = together(transport, "finishing the map pass", one.finish), accumulate_dtype(one.problem.dtype)
    received = gather_received(transport, one.problem, sums, dtype) if asked.received else None
    whole = None if asked.map_block is None else gather_map(transport, one.problem, sums, asked.map_block)
    arrays = {RECORDED_MAP: None if whole is None else whole.astype(dtype, copy=False), RECEIVED: received}
    return {name: array for name, array in arrays.items() if array is not None}


def record_top_keys(
    transport: CollectingRing, problem: Problem, asked: LateRecording, operands: MapOperands
) -> dict[str, Array]:
    """The top keys of chosen rows, by the names in the output, on rank 0; nothing elsewhere. Collective.

    The rows go to all ranks, and the top keys that each of them has to rank 0.
    """
    chosen, log_sum_exp = _chosen(transport, problem, asked, operands)
    search = partial(top_keys_of, problem, transport.rank, chosen, operands.k, asked.top_key_count)
    mine = together(transport, CHOOSING, search, patience=LONG_WORK)
    parts: list[TopKeys] = transport.collect(mine, CHOOSING, patience=LONG_WORK)
    if not parts:
        return {}
    top = merged_top_keys(parts, asked.top_key_count)
    weights = top.weights(log_sum_exp).astype(log_sum_exp.dtype)
    return {TOP_ROWS: chosen.positions, TOP_KEYS: top.weighed(log_sum_exp), TOP_WEIGHTS: weights}


def _chosen(
    transport: CollectingRing, problem: Problem, asked: LateRecording, operands: MapOperands
) -> tuple[ChosenRows, Array]:
    """The chosen rows with their queries, and log_sum_exp [batch, query_heads, rows]."""
    positions, heads = np.asarray(asked.top_rows, np.int64), problem.heads
    own = problem.queries.positions(transport.rank)
    which = np.flatnonzero(np.isin(positions, own))
    local = np.searchsorted(own, positions[which])
    mine = which, operands.q[:, :, local], operands.log_sum_exp[:, :, local]
    shape = heads.batch, heads.query_heads, len(positions)
    q = np.empty((*shape, heads.head_dim), problem.dtype)
    log_sum_exp = np.empty(shape, accumulate_dtype(problem.dtype))
    for theirs, queries, sums in transport.exchange(mine, CHOOSING):
        q[:, :, theirs], log_sum_exp[:, :, theirs] = queries, sums
    return ChosenRows(positions, q), log_sum_exp
