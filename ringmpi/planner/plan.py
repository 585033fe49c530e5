"""A plan: all that can be known of a run before it, from shapes, mask and shardings alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from ringmpi.core.problem import Problem
from ringmpi.planner.backward import MOST_BACKWARD_RANKS, BackwardPlan, plan_backward
from ringmpi.planner.balance import PassTables, key_bytes, read_pass, resharded
from ringmpi.planner.gpu_memory import GpuMemory, gpu_forward
from ringmpi.planner.machines import Rates
from ringmpi.planner.memory import RankMemory, rank_memory
from ringmpi.planner.network import Network
from ringmpi.planner.orders import Forecast, forecast, ring_orders
from ringmpi.planner.roofline import Times, critical_block_length, flops_a_pair, pass_times

ALL_RANKS = 16
MOST_RANKS = 4096


@dataclass(frozen=True)
class Plan:
    """A problem on some ranks, in numbers.

    Attributes
    ----------
    tables : PassTables
    memory : RankMemory
        Of rank `memory_rank`, which needs most of those that were looked at: all of up to 16 ranks; of more, the one
        with most queries and the one in the middle.
    rates, times
        None where no rates were given. On a topology: of the placed ring.
    backward : BackwardPlan or None
        Where gradients are asked for.
    travel : str or None
        What was asked to travel in the backward pass; None: no gradients.
    network : Network or None
        Where a topology was given.
    forecasts : dict of str to Forecast
        On it: the pass in each order of the ranks.
    gpu : GpuMemory or None
        Of the forward pass, where ranks compute on GPUs: of the one that needs most of those that were looked at.
    """

    problem: Problem
    tables: PassTables
    memory: RankMemory
    memory_rank: int
    rates: Rates | None
    times: Times | None
    backward: BackwardPlan | None = None
    travel: str | None = None
    network: Network | None = None
    forecasts: Mapping[str, Forecast] = field(default_factory=dict)
    gpu: GpuMemory | None = None

    @property
    def peak(self) -> int:
        """Bytes of arrays of the rank that needs most: in the pass that needs more, where there are two.

        Of its GPU, where it computes on one.
        """
        if self.gpu is not None:
            return max(self.gpu.peak, self.backward.way.gpu.peak if self.backward else 0)
        return max(self.memory.peak, self.backward.way.memory.peak if self.backward else 0)

    @property
    def host_bytes(self) -> tuple[int, ...]:
        """What arrays take on the host where ranks compute on GPUs, pass by pass: what was read, and what comes back.

        Of the ranks that would need most without GPUs.
        """
        memory, keys = self.memory, self.problem.keys.shard_length(self.memory_rank) * key_bytes(self.problem)
        if self.backward is None:
            return (max(memory.queries + keys, memory.partial + memory.output),)
        way = self.backward.way.memory
        return memory.peak - memory.slots, way.peak - way.slots - way.gradients

    @property
    def most_ranks(self) -> int:
        """On how many this can be planned."""
        return _most_ranks(self.travel)

    @property
    def flops(self) -> int:
        """Of all ranks: the same for every rank count and sharding."""
        return self.problem.pairs_asked * 2 * (self.problem.heads.head_dim + self.problem.heads.value_dim)

    @property
    def flops_a_pair(self) -> int:
        """Of one pair of positions, over batch and query heads."""
        return flops_a_pair(self.problem.heads)

    @cached_property
    def bytes_sent(self) -> int:
        """Keys and values that travel, over all ranks."""
        return int(self.tables.bytes_sent.sum())

    @property
    def wasted(self) -> float:
        """Share of the ranks' time that they spend waiting for the busiest one."""
        return 1 - 1 / self.tables.imbalance

    @property
    def queries_a_rank(self) -> int:
        """Of the rank that has most."""
        return max(self.problem.queries.shard_length(rank) for rank in range(self.problem.size))

    @property
    def critical_block_length(self) -> float | None:
        """Queries per rank from which on a hop hides behind the work; None without rates."""
        if self.rates is None:
            return None
        heads = self.problem.heads
        return critical_block_length(
            _on_ring(self.rates, self.forecasts),
            itemsize=self.problem.dtype.itemsize,
            query_heads=heads.query_heads,
            key_heads=heads.key_heads,
            density=self.tables.density,
        )


def make_plan(
    problem: Problem,
    rates: Rates | None = None,
    travel: str | None = None,
    network: Network | None = None,
    *,
    on_gpus: bool = False,
) -> Plan:
    """Plan a run of `problem`; with `rates`, how long it takes; with `travel`, its backward pass too.

    On a `network`, whose rates these are, hops share cables; a backward pass goes at the rate of the slowest hop.
    """
    looked_at = _ranks_to_look_at(problem)
    tables = read_pass(problem, looked_at)
    needs = [(rank_memory(problem, itinerary), itinerary.rank) for itinerary in tables.itineraries]
    memory, rank = max(needs, key=lambda need: need[0].peak)
    forecasts = {}
    if network:
        orders = ring_orders(network).items()
        forecasts = {name: forecast(problem, tables, network, ranks) for name, ranks in orders}
        times: Times | None = forecasts["placed"].times
    else:
        times = pass_times(problem, tables, rates) if rates else None
    backward = plan_backward(problem, travel, looked_at, rates and _on_ring(rates, forecasts)) if travel else None
    if backward:
        memory, rank = backward.forward, backward.forward_rank
    gpu = _gpu(problem, tables, backward) if on_gpus else None
    return Plan(problem, tables, memory, rank, rates, times, backward, travel, network, forecasts, gpu)


def _gpu(problem: Problem, tables: PassTables, backward: BackwardPlan | None) -> GpuMemory:
    """Of the forward pass."""
    if backward:
        return backward.forward_gpu
    return max((gpu_forward(problem, itinerary) for itinerary in tables.itineraries), key=lambda need: need.peak)


def _on_ring(rates: Rates, forecasts: Mapping[str, Forecast]) -> Rates:
    """With the bandwidth of the slowest hop of the placed ring."""
    return replace(rates, bandwidth=forecasts["placed"].bandwidth) if forecasts else rates


def ranks_that_fit(
    problem: Problem, sharding: str, memory: float, travel: str | None = None, *, on_gpus: bool = False
) -> int | None:
    """The fewest ranks on which no rank needs more than `memory` bytes of arrays; None if not even the most do."""
    most = _most_ranks(travel)

    def fits(size: int) -> bool:
        return make_plan(resharded(problem, sharding, size), travel=travel, on_gpus=on_gpus).peak <= memory

    enough = problem.size
    while not fits(enough):
        enough *= 2
        if enough > most:
            return None
    too_few = enough // 2 if enough > problem.size else 0
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        enough, too_few = (middle, too_few) if fits(middle) else (enough, middle)
    return enough


def _most_ranks(travel: str | None) -> int:
    return MOST_BACKWARD_RANKS if travel else MOST_RANKS


def _ranks_to_look_at(problem: Problem) -> list[int]:
    size = problem.size
    if size <= ALL_RANKS:
        return list(range(size))
    return sorted({max(range(size), key=problem.queries.shard_length), size // 2})
