"""What one rank computes in a run: the forward pass and, where it is asked for, the backward pass over the same ring.

Memory is handed on: keys and values lie in the slots of the forward pass where nobody needs them afterwards, and its
sums and slots are gone before the backward pass takes room for its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ringmpi.checkpoint.saved_state import (
    backward_state,
    forward_state,
    restore_backward,
    restore_forward,
    restore_given,
    restore_rows,
)
from ringmpi.comm.agreement import LONG_WORK, Exchanges, together
from ringmpi.comm.protocol import Flight
from ringmpi.core.gradients import Saved, delta_of
from ringmpi.core.partial import Array
from ringmpi.core.problem import Problem
from ringmpi.core.stages import FORWARD, SECOND_BACKWARD
from ringmpi.job import progress
from ringmpi.job.job import Job
from ringmpi.job.late_passes import LateResult, record_late
from ringmpi.job.reading import KEY_AND_VALUE, Reading, read_inputs
from ringmpi.numbers import counted, size
from ringmpi.passes.backward_pass import BackwardPass, agree_on_backward, query_key_value_of
from ringmpi.passes.forward_pass import ForwardPass, ForwardResult, agree_on_forward
from ringmpi.passes.guard import Guard
from ringmpi.passes.timeline import RankTimeline
from ringmpi.passes.travel import Operands
from ringmpi.planner.gpu_memory import GpuMemory, gpu_forward
from ringmpi.planner.memory import backward_memory, rank_memory
from ringmpi.ring import Ring
from ringmpi.storage.shards import ShardGradients

log = logging.getLogger("ringmpi")
T = TypeVar("T")


@dataclass(frozen=True)
class BackwardResult:
    """Gradients of the shard of a rank, and how they came about; `travel`: "keys", "queries", or "both" in turn."""

    gradients: ShardGradients
    timeline: RankTimeline
    travel: str


@dataclass(frozen=True)
class Computed:
    """What a rank has computed.

    Attributes
    ----------
    rows : ForwardResult
    timeline : RankTimeline
        Of the forward pass, reading included.
    backward : BackwardResult or None
    late : LateResult or None
        None where nothing is recorded after the forward pass.
    array_bytes : int
        The most that the arrays of this rank needed at once, by the formula of `ringmpi plan`.
    checksums : dict
        Name -> checksum of the array of the input, of those that were read whole by all ranks.
    """

    rows: ForwardResult
    timeline: RankTimeline
    backward: BackwardResult | None
    late: LateResult | None
    array_bytes: int
    checksums: dict[str, str]


def compute(job: Job, close_input: Callable[[], None]) -> Computed | None:
    """Read, attend, and give gradients where they are asked for. Collective.

    Parameters
    ----------
    close_input : function ()
        Called when all is read.

    Returns
    -------
    Computed or None
        None where the run was stopped, on all ranks alike: `keeper.stop` says why.

    Raises
    ------
    RingMpiError
        On all ranks alike.
    """
    transport, problem, keeper = job.ring.transport, job.question.problem, job.keeper
    start = keeper.start(FORWARD)
    assert start is not None, "a forward pass that is over is one of which all is absorbed"
    forward = agree_on_forward(transport, problem, job.backend, donated=not job.keeps_inputs, start=start)
    memory = rank_memory(problem, forward.itinerary, gradients=job.travel is not None, stays=job.keeps_inputs).peak
    _announce(job.ring, problem, job.backend.name, memory)
    if not job.backend.memory.on_host:
        _announce_gpu(gpu_forward(problem, forward.itinerary, gradients=job.travel is not None))
    reading = read_inputs(transport, job.question, forward)
    keeper.check_input(job.question, reading.checksums())
    close_input()
    if job.ring.rank == 0 and reading.warning():
        log.warning("%s", reading.warning())
    if not forward.donated:
        forward.adopt(*(reading.arrays[name] for name in KEY_AND_VALUE))
    rows, timeline = _forward(job, forward, reading), forward.timeline
    del forward
    if rows is None:
        return None
    late, asked = None, job.question.late
    if asked is not None:
        late = record_late(job, asked, reading.arrays, rows)
        if late is None:
            return None
        memory = max(memory, late.memory)
    if job.travel is None:
        return Computed(rows, timeline, None, late, memory, reading.checksums())
    found = _backward(job, reading, rows, job.travel)
    if found is None:
        return None
    backward = found.result(problem.keys.shards[job.ring.rank])
    return Computed(rows, timeline, backward, late, max(memory, found.memory), reading.checksums())


def _forward(job: Job, forward: ForwardPass, reading: Reading) -> ForwardResult | None:
    """The result of this rank; None where the run was stopped."""
    transport, past = job.ring.transport, job.keeper.past
    if past and past.stage != FORWARD:
        return _restored(transport, lambda: restore_rows(forward.problem, forward.rank, past.saved))
    if past:
        _restored(transport, lambda: restore_forward(forward, past.saved))

    def loop(guard: Guard) -> Iterator[Flight]:
        query = reading.take("query", last=not job.keeps_inputs)
        return forward.loop(transport, query, reading.finite(*KEY_AND_VALUE), guard)

    with progress.shown(forward.timeline, forward.pairs_asked - forward.pairs_attended):
        if not job.keeper.drive(forward, loop, lambda: forward_state(forward), anywhere=True):
            return None
    if not job.keeps_inputs:
        reading.arrays.clear()
    elif job.travel is None:
        del reading.arrays["value"]
    return together(transport, "finishing the pass", forward.finish)


def _restored(ring: Exchanges, action: Callable[[], T]) -> T:
    """What is read from a checkpoint, each rank its own."""
    return together(ring, "reading the checkpoint", action, patience=LONG_WORK)


def _backward(job: Job, reading: Reading, rows: ForwardResult, travel: str) -> _Gradients | None:
    """The gradients of this rank, from output and log_sum_exp in `rows`; None where the run was stopped."""
    transport, problem, past = job.ring.transport, job.question.problem, job.keeper.past
    finite = reading.finite()
    operands = together(transport, "allocating memory", lambda: _operands(reading.arrays, rows))
    reading.arrays.clear()
    found = _Gradients(problem)
    if past and past.stage == SECOND_BACKWARD:
        grad_query = _restored(transport, lambda: restore_given(problem, job.ring.rank, past.saved))
        found.grads.append((grad_query, None, None))
    for backward in agree_on_backward(transport, problem, job.backend, travel, job.keeper.start):
        if past and past.stage == backward.stage:
            _restored(transport, partial(restore_backward, backward, past.saved, same=past.same_layout))
        needs = backward_memory(problem, backward.travel, backward.itinerary, backward.gradient_bytes).peak
        log.info("backward pass: %s travel, %s of arrays on rank 0", backward.travel.name, size(needs))
        loop = partial(backward.loop, transport, operands, finite)
        state = partial(backward_state, backward, rows, found.grad_query)
        with progress.shown(backward.timeline, backward.pairs_asked - backward.pairs_attended):
            if not job.keeper.drive(backward, loop, state, anywhere=not problem.schedule.gradients_travel):
                return None
        del loop, state
        if found.is_last:
            del operands
        found.add(backward, together(transport, "finishing the backward pass", backward.finish), needs)
        del backward
    return found


class _Gradients:
    """What one or two backward passes have given. memory: the most that the arrays of one needed, bytes."""

    def __init__(self, problem: Problem) -> None:
        self.grads: list[Sequence[Array | None]] = []
        self.memory, self._passes = 0, problem.schedule.backward_passes
        self._timelines: list[RankTimeline] = []
        self._travel = ""

    @property
    def is_last(self) -> bool:
        """Whether the pass that is on is the last one."""
        return len(self.grads) + 1 == self._passes

    @property
    def grad_query(self) -> Array | None:
        """What the first of two passes has given."""
        return self.grads[0][0] if self.grads else None

    def add(self, backward: BackwardPass, grads: Sequence[Array | None], memory: int) -> None:
        """What the next pass has given; None for gradients that the other one gives."""
        self._travel = backward.travel.name if self._passes == 1 else "both"
        self._timelines.append(backward.timeline)
        self.grads.append(grads)
        self.memory = max(self.memory, memory)

    def result(self, keys: Sequence[range]) -> BackwardResult:
        """All of it; `keys`: the positions of this rank's."""
        query, key, value = query_key_value_of(self.grads)
        gradients = ShardGradients(query, key, value, keys)
        return BackwardResult(gradients, RankTimeline.joined(self._timelines), self._travel)


def _operands(arrays: dict[str, Array], rows: ForwardResult) -> Operands:
    """What the backward pass starts from; probabilities are made again from log_sum_exp."""
    grad_output, log_sum_exp = arrays["grad_output"], rows.log_sum_exp
    delta = delta_of(grad_output, rows.output, arrays.get("grad_log_sum_exp"), log_sum_exp.dtype)
    saved = Saved(grad_output, log_sum_exp, delta)
    return Operands(arrays["query"], arrays["key"], arrays["value"], saved)


def _announce(ring: Ring, problem: Problem, backend: str, memory: int) -> None:
    """What is about to be computed, and what is odd about it, told by rank 0."""
    log.info(
        "%s of %s, %s keys, mask %s, sharding %s, schedule %s, backend %s, %s of arrays on rank 0",
        counted(problem.size, "rank"),
        counted(ring.threads, "thread"),
        f"{problem.keys.length:,}",
        problem.mask,
        problem.queries.name,
        problem.schedule_in_words,
        backend,
        size(memory),
    )
    for doubt in problem.doubts() if ring.rank == 0 else ():
        log.warning("%s", doubt)


def _announce_gpu(needed: GpuMemory) -> None:
    log.info(
        "forward pass: %s on the GPU of rank 0, %s of its host for messages that go by it",
        size(needed.peak),
        size(needed.pinned),
    )
