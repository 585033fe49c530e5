"""What one rank computes in a run: the forward pass and, where it is asked for, the backward pass over the same ring.

Memory is handed on: keys and values lie in the slots of the forward pass where nobody needs them afterwards, and its
sums and slots are gone before the backward pass takes room for its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ringmpi import progress
from ringmpi.backends.base import Backend
from ringmpi.backward_pass import BackwardPass, agree_on_backward, query_key_value_of
from ringmpi.comm.agreement import together
from ringmpi.core.gradients import Saved, delta_of
from ringmpi.core.partial import Array
from ringmpi.core.problem import Problem
from ringmpi.planner.memory import backward_memory, rank_memory
from ringmpi.question import Question
from ringmpi.reading import KEY_AND_VALUE, Reading, read_inputs
from ringmpi.ring import Ring
from ringmpi.ring_pass import agree_on_pass
from ringmpi.storage.shards import ShardGradients
from ringmpi.timeline import RankTimeline
from ringmpi.travel import Operands

log = logging.getLogger("ringmpi")
MIB = 2.0**20


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
    output : array [batch, query_heads, queries, value_dim]
    log_sum_exp : array [batch, query_heads, queries]
    timeline : RankTimeline
        Of the forward pass, reading included.
    backward : BackwardResult or None
    array_bytes : int
        The most that the arrays of this rank needed at once, by the formula of `ringmpi plan`.
    checksums : dict
        Name -> checksum of the array of the input, of those that were read whole by all ranks.
    """

    output: Array
    log_sum_exp: Array
    timeline: RankTimeline
    backward: BackwardResult | None
    array_bytes: int
    checksums: dict[str, str]


def compute(
    ring: Ring, question: Question, backend: Backend, *, travel: str | None, close_input: Callable[[], None]
) -> Computed:
    """Read, attend, and give gradients where `travel` ("auto", "keys", "queries") is not None. Collective.

    Parameters
    ----------
    close_input : function ()
        Called when all is read.

    Raises
    ------
    RingMpiError
        On all ranks alike.
    """
    transport, problem = ring.transport, question.problem
    forward = agree_on_pass(transport, problem, backend, donated=travel is None)
    memory = rank_memory(problem, forward.itinerary, gradients=travel is not None).peak
    _announce(ring, problem, backend.name, memory)
    reading = read_inputs(transport, question, forward)
    close_input()
    if ring.rank == 0 and reading.warning():
        log.warning("%s", reading.warning())
    if not forward.donated:
        forward.adopt(*(reading.arrays[name] for name in KEY_AND_VALUE))
    with progress.shown(forward.timeline, forward.pairs_asked):
        loop = forward.loop(transport, reading.arrays["query"], reading.finite(*KEY_AND_VALUE))
        transport.drive(loop, forward.timeline.where)
    del loop
    if travel is None:
        reading.arrays.clear()
    rows, timeline = together(transport, "finishing the pass", forward.finish), forward.timeline
    del forward
    if travel is None:
        return Computed(*rows, timeline, None, memory, reading.checksums())
    backward, more = _backward(ring, problem, backend, reading, rows, travel)
    return Computed(*rows, timeline, backward, max(memory, more), reading.checksums())


def _backward(
    ring: Ring, problem: Problem, backend: Backend, reading: Reading, rows: tuple[Array, Array], travel: str
) -> tuple[BackwardResult, int]:
    """The gradients of this rank, and the bytes of arrays that they need. `rows`: output and log_sum_exp."""
    transport, finite = ring.transport, reading.finite()
    operands = together(transport, "allocating memory", lambda: _operands(reading.arrays, *rows))
    reading.arrays.clear()
    passes, found, memory = problem.schedule.backward_passes, _Found(), 0
    for backward in agree_on_backward(transport, problem, backend, travel):
        needs = backward_memory(problem, backward.travel, backward.itinerary, backward.slots.gradients.nbytes).peak
        memory = max(memory, needs)
        log.info("backward pass: %s travel, %.1f MiB of arrays on rank 0", backward.travel.name, needs / MIB)
        with progress.shown(backward.timeline, backward.pairs_asked):
            loop = backward.loop(transport, operands, finite)
            transport.drive(loop, backward.timeline.where)
        del loop
        if len(found.timelines) + 1 == passes:
            del operands
        found.add(backward, together(transport, "finishing the backward pass", backward.finish))
        del backward
    query, key, value = found.gradients()
    gradients = ShardGradients(query, key, value, problem.keys.shards[ring.rank])
    return BackwardResult(gradients, RankTimeline.joined(found.timelines), found.travel), memory


class _Found:
    """What one or two backward passes have given."""

    def __init__(self) -> None:
        self.timelines: list[RankTimeline] = []
        self.travel = ""
        self._grads: list[Sequence[Array | None]] = []

    def add(self, backward: BackwardPass, grads: Sequence[Array | None]) -> None:
        """What the next pass has given; None for gradients that the other one gives."""
        self.travel = "both" if self.timelines else backward.travel.name
        self.timelines.append(backward.timeline)
        self._grads.append(grads)

    def gradients(self) -> Iterator[Array]:
        """Of queries, keys and values."""
        return query_key_value_of(self._grads)


def _operands(arrays: dict[str, Array], output: Array, log_sum_exp: Array) -> Operands:
    """What the backward pass starts from; probabilities are made again from log_sum_exp."""
    grad_output = arrays["grad_output"]
    delta = delta_of(grad_output, output, arrays.get("grad_log_sum_exp"), log_sum_exp.dtype)
    saved = Saved(grad_output, log_sum_exp, delta)
    return Operands(arrays["query"], arrays["key"], arrays["value"], saved)


def _announce(ring: Ring, problem: Problem, backend: str, memory: int) -> None:
    """What is about to be computed, and what is odd about it, told by rank 0."""
    log.info(
        "%s of %s, %s keys, mask %s, sharding %s, schedule %s, backend %s, %.1f MiB of arrays on rank 0",
        counted(problem.size, "rank"),
        counted(ring.threads, "thread"),
        f"{problem.keys.length:,}",
        problem.mask,
        problem.queries.name,
        problem.schedule_in_words,
        backend,
        memory / MIB,
    )
    for doubt in problem.doubts() if ring.rank == 0 else ():
        log.warning("%s", doubt)


def counted(number: int, noun: str) -> str:
    """So many of them, in words."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
