"""A backward pass before there is one: both ways round, counted by the functions that a run itself uses.

Either keys travel, with their gradients behind them, or queries do, with theirs (passes/travel.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.gradient_routes import NO_GRADIENTS, follow, gradient_legs, plan_gradients
from ringmpi.core.itinerary import Itinerary, plan_itinerary
from ringmpi.core.problem import Problem
from ringmpi.core.rank_work import RankWork
from ringmpi.core.schedule import plan_route
from ringmpi.core.shapes import HeadShape
from ringmpi.errors import ConfigError
from ringmpi.passes.travel import Travel, travel_by_name, ways_by_name
from ringmpi.planner.balance import Ints, PassTables
from ringmpi.planner.gpu_memory import GpuMemory, gpu_backward, gpu_forward
from ringmpi.planner.machines import Rates
from ringmpi.planner.memory import BackwardMemory, RankMemory, backward_memory, form_bytes, rank_memory
from ringmpi.planner.roofline import pass_times

MOST_BACKWARD_RANKS = 256  # every leg of every gradient is looked at


@dataclass(frozen=True)
class BackwardHop:
    """Bytes of one position in one hop, over all heads. Gradients travel in the accumulation dtype.

    forward : keys and values
    keys_travel : keys, values and their gradients
    queries_travel : queries, the output's gradients, the queries' gradients, log_sum_exp and one number more per row
    """

    forward: int
    keys_travel: int
    queries_travel: int


def backward_hop(heads: HeadShape, dtype: np.dtype) -> BackwardHop:
    """The BackwardHop of some heads.

    Source
    ------
    Keys travel: Liu, Zaharia, Abbeel 2023, appendix A. Rows: FlashAttention-2 (Dao 2023), Algorithm 2.
    """
    item, wide = dtype.itemsize, accumulate_dtype(dtype).itemsize
    both = heads.head_dim + heads.value_dim
    return BackwardHop(
        forward=heads.batch * heads.key_heads * both * item,
        keys_travel=heads.batch * heads.key_heads * both * (item + wide),
        queries_travel=heads.query_slabs * (both * item + (heads.head_dim + 2) * wide),
    )


def backward_bytes(problem: Problem) -> tuple[int, int]:
    """Bytes that all ranks send in a forward and in a backward pass with a full mask, keys travelling.

    Keys and values make P - 1 hops either way, gradients P: the last one brings them home.
    """
    hop = backward_hop(problem.heads, problem.dtype)
    size, keys = problem.size, problem.keys.length
    gradients = hop.keys_travel - hop.forward
    hops_home = size if size > 1 else 0
    return (size - 1) * keys * hop.forward, (size - 1) * keys * hop.forward + hops_home * keys * gradients


@dataclass(frozen=True)
class BackwardWay:
    """One way round, on some ranks.

    Attributes
    ----------
    travel : str
        "keys" or "queries".
    bytes_sent : int64 [ranks]
        What travels and its gradients, as the timeline of a run counts them.
    memory : BackwardMemory
        Of rank `memory_rank`, which needs most of those that were looked at.
    seconds : float or None
        Predicted; None without rates.
    gpu : GpuMemory
        Of the one of these ranks that needs most of its GPU, where there are GPUs.
    """

    travel: str
    bytes_sent: Ints
    memory: BackwardMemory
    memory_rank: int
    seconds: float | None
    gpu: GpuMemory


@dataclass(frozen=True)
class BackwardPlan:
    """Both ways round, and the one that a run takes.

    forward : memory of the forward pass before it, whose inputs all stay, of rank `forward_rank`
    forward_gpu : that of a GPU
    """

    forward: RankMemory
    forward_rank: int
    forward_gpu: GpuMemory
    keys: BackwardWay
    queries: BackwardWay
    chosen: str

    @property
    def way(self) -> BackwardWay:
        """The one that is taken, or both after each other."""
        if self.chosen == "both":
            longer = max(self.keys, self.queries, key=lambda way: way.memory.peak)
            seconds = None if self.keys.seconds is None else self.keys.seconds + (self.queries.seconds or 0)
            sent = self.keys.bytes_sent + self.queries.bytes_sent
            gpu = max(self.keys.gpu, self.queries.gpu, key=lambda need: need.peak)
            return replace(longer, travel="both", bytes_sent=sent, seconds=seconds, gpu=gpu)
        return self.keys if self.chosen == "keys" else self.queries


def plan_backward(problem: Problem, travel: str, ranks: Sequence[int], rates: Rates | None) -> BackwardPlan:
    """Plan the backward pass of `problem`.

    Parameters
    ----------
    travel : str
        "keys", "queries", or "auto" as a run understands it.
    ranks : sequence of int
        Whose memory is looked at.

    Raises
    ------
    ConfigError
        On more than 256 ranks.
    """
    if problem.size > MOST_BACKWARD_RANKS:
        raise ConfigError(
            f"a backward pass is planned on up to {MOST_BACKWARD_RANKS:,} ranks, not on {problem.size:,}. Leave "
            f"[backward] out."
        )
    chosen = ways_by_name(travel, problem, 0)
    keys, queries = (_plan_way(problem, name, ranks, rates) for name in ("keys", "queries"))
    needed = np.stack([RankWork(problem, rank).pairs() > 0 for rank in range(problem.size)])
    route = plan_route(problem.schedule, problem.pieces, needed)
    itineraries = [plan_itinerary(problem.schedule, problem.pieces, needed, rank, route=route) for rank in ranks]
    needs = [(rank_memory(problem, itinerary, gradients=True), itinerary.rank) for itinerary in itineraries]
    forward = max(needs, key=lambda need: need[0].peak)
    gpu = max((gpu_forward(problem, it, gradients=True) for it in itineraries), key=lambda need: need.peak)
    return BackwardPlan(*forward, gpu, keys, queries, "both" if len(chosen) > 1 else chosen[0].name)


def _plan_way(problem: Problem, name: str, ranks: Sequence[int], rates: Rates | None) -> BackwardWay:
    ways = [travel_by_name(name, problem, rank) for rank in range(problem.size)]
    pairs = np.stack([way.work.pairs() for way in ways])
    schedule, pieces, needed = problem.schedule, ways[0].pieces, pairs > 0
    route = plan_route(schedule, pieces, needed)
    itineraries = [plan_itinerary(schedule, pieces, needed, rank, route=route) for rank in range(problem.size)]
    needs, gpus = [], []
    for rank in ranks:
        gradients, itinerary = NO_GRADIENTS, itineraries[rank]
        if schedule.gradients_travel:
            gradients = plan_gradients(schedule, pieces, needed, rank)
            itinerary = follow(itinerary, gradients)
        slots = sum(gradients.slot_lengths) * form_bytes(ways[rank].gradient_forms())
        needs.append((backward_memory(problem, ways[rank], itineraries[rank], slots), rank))
        gpus.append(gpu_backward(ways[rank], itinerary, gradients.slot_lengths))
    memory, memory_rank = max(needs, key=lambda need: need[0].peak)
    tables = _tables(problem, ways[0], itineraries, pairs)
    seconds = pass_times(problem, tables, _slower(rates, problem, name)).total if rates else None
    gpu = max(gpus, key=lambda need: need.peak)
    return BackwardWay(name, tables.bytes_sent, memory, memory_rank, seconds, gpu)


def _tables(problem: Problem, way: Travel, itineraries: Sequence[Itinerary], by_piece: Ints) -> PassTables:
    """The pass in numbers. Gradients are timed as if they came with the pieces that are due with them."""
    size, one, one_gradient = problem.size, form_bytes(way.forms()), form_bytes(way.gradient_forms())
    lengths = [piece.length for piece in way.pieces]
    steps = len(itineraries[0].steps) + 2  # the last gradients leave after the last step
    pairs, due = np.zeros((2, size, steps), np.int64)
    sent = np.zeros(size, np.int64)
    for itinerary in itineraries:
        rank = itinerary.rank
        for step in itinerary.steps:
            pairs[rank, step.index] = by_piece[rank, list(step.visits)].sum()
            for hop in step.hops:
                sent[rank] += one * sum(lengths[piece] for piece, _ in hop.sends)
                due[rank, hop.due] += one * sum(lengths[piece] for piece, _ in hop.receives)
    for leg in gradient_legs(problem.schedule, way.pieces, by_piece > 0) if problem.schedule.gradients_travel else ():
        nbytes = one_gradient * lengths[leg.piece]
        sent[leg.source] += nbytes
        # `pass_times` takes what comes straight from an owner for as many bytes more as it has steps to come
        due[leg.target, leg.due] += nbytes if problem.schedule.hand_to_hand else nbytes // leg.due
    return PassTables(pairs, sent, due, np.count_nonzero(due, axis=0), 0.0, ())


def _slower(rates: Rates, problem: Problem, travel: str) -> Rates:
    """Rates for which a pair costs what it does backwards: five products in the place of two, or three and four."""
    d, dv = problem.heads.head_dim, problem.heads.value_dim
    columns = 3 * d + 2 * dv
    if not problem.schedule.gradients_travel:
        columns = 2 * d + dv if travel == "keys" else 2 * (d + dv)
    return replace(rates, flops=rates.flops * (d + dv) / columns)
