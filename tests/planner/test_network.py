"""Hops on a machine: loads of every cable counted by a plain loop over the routes, message by message."""

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.fabrics import dragonfly, torus
from ringmpi import Mask
from ringmpi.core.itinerary import plan_itinerary
from ringmpi.core.rank_work import RankWork
from ringmpi.errors import ConfigError, TopologyError
from ringmpi.planner.balance import key_bytes, read_pass
from ringmpi.planner.machines import Rates
from ringmpi.planner.network import GatherHops, Network, RingHops
from ringmpi.planner.orders import forecast, ring_orders
from ringmpi.planner.plan import make_plan
from ringmpi.topology.graph import Graph, Grid, Link
from tests.planner.problems import problem
from tests.topology.machines import fat_tree, grid_machine, random_fabric, random_tree

RATES = Rates(1e9, 2e6, "")
LATENCY = 1e-3
MACHINES = [random_tree, random_fabric, lambda random, count: grid_machine((count, 2), (True, False))]


def network_of(graph, ranks, *, a_host=1):
    hosts = [host for host in graph.hosts for _ in range(a_host)]
    return Network(graph, hosts[:ranks], RATES, LATENCY)


def busy(network, messages):
    """Seconds that each message takes by itself and with all others: (from, to, bytes), hosts by number."""
    loads = Counter()
    for a, b, nbytes in messages:
        for cable in network.routes.links(a, b):
            loads[cable] += nbytes
    return loads, lambda cable: loads[cable] * network.routes.slowness[cable] / RATES.bandwidth


def hop_seconds(network, messages):
    """One after the other: the busiest cable of its route, and the latency of its links."""
    _, seconds = busy(network, messages)
    found = []
    for a, b, nbytes in messages:
        route = network.routes.links(a, b)
        found.append(LATENCY * max(len(route), 1) + max(map(seconds, route), default=nbytes / RATES.bandwidth))
    return found


@given(st.randoms(use_true_random=False), st.integers(2, 9), st.integers(1, 3), st.sampled_from(MACHINES))
def test_a_hop_takes_as_long_as_the_busiest_cable_of_its_way(random, ranks, a_host, machine):
    network = network_of(machine(random, ranks), ranks, a_host=a_host)
    order = random.sample(range(ranks), ranks)
    ring = network.launch[order].tolist()
    nbytes = [random.choice((0, 1_000, 5_000, 70_000)) for _ in range(2 * ranks)]
    forth = [(ring[rank - 1], ring[rank], nbytes[rank]) for rank in range(ranks)]
    back = [(ring[(rank + 1) % ranks], ring[rank], nbytes[ranks + rank]) for rank in range(ranks)]
    halves = np.array(nbytes).reshape(2, ranks)
    one = RingHops(network, order, (1,)).seconds(1, 0, halves[:1])
    both = RingHops(network, order, (1, -1)).seconds(1, 0, halves)
    assert one.ravel() == pytest.approx(hop_seconds(network, forth), rel=1e-12)
    assert both.ravel() == pytest.approx(hop_seconds(network, forth + back), rel=1e-12)


@given(st.randoms(use_true_random=False), st.integers(2, 7), st.sampled_from(MACHINES))
def test_gathered_hops_share_their_cables_until_they_have_landed(random, ranks, machine):
    network = network_of(machine(random, ranks), ranks)
    due = np.array([[0, *(random.choice((0, 1_000, 5_000)) for _ in range(1, ranks))] for _ in range(ranks)])
    hops = GatherHops(network, range(ranks), due)
    ring = network.launch.tolist()
    every = [(ring[rank - step], ring[rank], int(due[rank, step])) for step in range(ranks) for rank in range(ranks)]
    for at, (a, b, nbytes) in enumerate(every):
        _, seconds = busy(network, [(c, d, min(other, nbytes)) for c, d, other in every])
        route = network.routes.links(a, b)
        expected = LATENCY * max(len(route), 1) + max(map(seconds, route), default=nbytes / RATES.bandwidth)
        if nbytes:
            found = hops.seconds(at // ranks, 0, [due[:, at // ranks]])[0, at % ranks]
            assert found == pytest.approx(expected, rel=1e-12)


def simulated(asked, network, order):
    """When the last rank is ready: bytes from the itineraries that runs use, hops by the loop above."""
    pairs = np.stack([RankWork(asked, rank).pairs() for rank in range(asked.size)])
    plans = [plan_itinerary(asked.schedule, asked.pieces, pairs > 0, rank) for rank in range(asked.size)]
    second = 2 * (asked.heads.head_dim + asked.heads.value_dim) * asked.heads.query_slabs / RATES.flops
    ring, one = network.launch[list(order)].tolist(), key_bytes(asked)
    starts = np.zeros(asked.size)
    for step in range(len(plans[0].steps)):
        ends = starts.copy()
        for plan in plans:
            ends[plan.rank] += sum(int(pairs[plan.rank, piece]) for piece in plan.steps[step].visits) * second
        nbytes = Counter()
        for plan in plans:
            for hop in plan.steps[step].hops:
                for piece, peer in hop.receives:
                    nbytes[peer, plan.rank, asked.pieces[piece].direction] += asked.pieces[piece].length * one
        messages = [(ring[peer], ring[rank], size) for (peer, rank, _), size in nbytes.items()]
        for (peer, rank, _), seconds in zip(nbytes, hop_seconds(network, messages), strict=True):
            left = max(starts[peer], starts[rank])
            for end in (peer, rank):
                ends[end] = max(ends[end], left + seconds)
        starts = ends
    return starts.max()


@given(
    st.randoms(use_true_random=False),
    st.integers(1, 6),
    st.sampled_from(["ring", "bidirectional", "broadcast"]),
    st.sampled_from(["contiguous", "zigzag"]),
    st.sampled_from([Mask.full(), Mask.causal(), Mask.window(9, 0)]),
)
def test_the_total_is_that_of_a_simulation_message_by_message(random, ranks, schedule, sharding, mask):
    asked = problem(61, ranks, schedule=schedule, sharding=sharding, mask=mask)
    network = network_of(random_tree(random, ranks), ranks)
    order = tuple(random.sample(range(ranks), ranks))
    found = forecast(asked, read_pass(asked), network, order)
    assert found.times.total == pytest.approx(simulated(asked, network, order), rel=1e-9)


def test_the_slowest_hop_is_as_slow_as_the_congestion_says():
    for graph in (fat_tree(4, 4, 2), torus(4, 3), dragonfly(3, 2, 2, cables=1)):
        network = network_of(graph, len(graph.hosts))
        for name, order in ring_orders(network).items():
            hops = RingHops(network, order, (1,))
            assert hops.bandwidth == pytest.approx(RATES.bandwidth / hops.cost.congestion), name


def test_a_torus_carries_a_bidirectional_ring_twice_as_fast():
    """A placed ring on a torus has a cable of its own for each edge, each way."""
    network = network_of(torus(4, 4), 16)
    ring = ring_orders(network)["placed"]
    assert RingHops(network, ring, (1, -1)).bandwidth == pytest.approx(2 * RingHops(network, ring, (1,)).bandwidth)


def test_rates_of_links_come_from_the_file_where_it_tells_them():
    links = (Link(("n0", "s"), 0.2), Link(("n1", "s"), 0.1))
    graph = Graph("fabric", hosts=("n0", "n1"), switches=("s",), links=links, unit="Gbit/s")
    network = Network(graph, ["n0", "n1", "n1"], Rates(1e9, 5e9, ""), 0.0)
    assert network.fastest == pytest.approx(0.2e9 / 8)
    hops = RingHops(network, (0, 1, 2), (1,)).seconds(1, 0, [np.full(3, 1_000)])
    assert hops.ravel() == pytest.approx([8e3 / 0.1e9, 8e3 / 0.1e9, 1_000 / 5e9])


def test_a_plan_on_a_topology_is_that_of_the_placed_ring():
    graph = fat_tree(2, 4, 1)
    mixed = [graph.hosts[n] for n in (0, 4, 1, 5, 2, 6, 3, 7)]
    asked = problem(4_000, 8, mask=Mask.full())
    plan = make_plan(asked, RATES, None, Network(graph, mixed, RATES, LATENCY))
    launch, placed = plan.forecasts["launch"], plan.forecasts["placed"]
    assert (launch.cost.congestion, placed.cost.congestion) == (4, 1)
    assert plan.times == placed.times
    assert launch.times.total > 3 * placed.times.total
    assert 0 < launch.at_work < placed.at_work <= 1
    flat = make_plan(asked, RATES)
    assert plan.critical_block_length == pytest.approx(flat.critical_block_length)


def test_the_backward_pass_goes_at_the_rate_of_the_slowest_hop():
    graph = Graph("fabric", hosts=("a", "b"), switches=("s",), links=(Link(("a", "s"), 4), Link(("b", "s"), 1)))
    asked = problem(4_000, 2, mask=Mask.full())
    plan = make_plan(asked, RATES, "keys", Network(graph, ["a", "b"], RATES, 0.0))
    quarter = make_plan(asked, Rates(RATES.flops, RATES.bandwidth / 4, ""), "keys")
    assert plan.backward.keys.seconds == quarter.backward.keys.seconds


def test_hosts_that_the_files_do_not_know_are_named():
    with pytest.raises(TopologyError, match="hosts without a link in the topology: x7"):
        Network(fat_tree(2, 2, 1), ["h0", "x7"], RATES, 0.0)
    with pytest.raises(TopologyError, match="2 hosts but no links are known"):
        Network(Graph("none", hosts=("a", "b")), ["a", "b"], RATES, 0.0)
    assert Network(Graph("torus", ("a",), grids=(Grid("g", (1,), (True,), {"a": (0,)}),)), ["a"], RATES, 0.0)


def test_all_to_all_ways_of_many_ranks_are_refused():
    graph = torus(8, 8, 9)
    asked = problem(10_000, 576, schedule="all-gather")
    with pytest.raises(ConfigError, match="up to 512 ranks, not with 576"):
        make_plan(asked, RATES, None, network_of(graph, 576))


def test_4096_ranks_take_seconds():
    began = time.process_time()
    graph = torus(16, 16, 16)
    network = Network(graph, graph.hosts, Rates(600e12, 50e9, ""), 1e-6)
    asked = problem(1 << 20, 4096, sharding="zigzag", heads=(32, 8, 128))
    times = forecast(asked, read_pass(asked), network, tuple(range(4096))).times
    assert times.total > 4095 * 1.04e6 / 50e9  # blocks of 256 positions, one after the other
    assert time.process_time() - began < 60
