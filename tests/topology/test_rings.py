"""What each way to find a ring gives by itself: in a placement, the others make up for its faults."""

from random import Random

import numpy as np
import pytest

from ringmpi.topology import exhaustive
from ringmpi.topology.bounds import dilation_bound
from ringmpi.topology.cost import Cost, ring_cost
from ringmpi.topology.depth_first import depth_first_order, joining_tree
from ringmpi.topology.exhaustive import best_ring
from ringmpi.topology.grid_walk import grid_ring
from ringmpi.topology.placement import place
from ringmpi.topology.relief import relieved
from ringmpi.topology.routing import routes_between
from tests.topology.machines import (
    best_of_all,
    fat_tree,
    grid_machine,
    linked,
    random_fabric,
    random_tree,
    stretched_tree,
)

NO_BOUND = Cost(0.0, 0, 0)


@pytest.mark.parametrize("seed", range(15))
def test_trying_all_rings_finds_the_best_from_any_other(seed):
    random = Random(seed)
    graph = random_fabric(random, 7)
    routes = routes_between(graph, graph.hosts)
    ring = random.sample(range(7), 7)
    found, cost, proved = best_ring(routes, ring, ring_cost(routes, ring), NO_BOUND)
    assert cost == ring_cost(routes, found) == best_of_all(routes)
    assert proved


def test_a_search_that_gives_up_proves_nothing(monkeypatch):
    monkeypatch.setattr(exhaustive, "MOST_STEPS", 20)
    graph = fat_tree(10, 1, 2)
    routes = routes_between(graph, graph.hosts)
    ring = list(range(10))
    assert not best_ring(routes, ring, Cost(99.0, 99, 999), NO_BOUND)[2]


@pytest.mark.parametrize("seed", range(10))
def test_a_depth_first_order_crosses_each_link_once_in_each_direction(seed):
    graph = random_tree(Random(seed), 40)
    routes = routes_between(graph, graph.hosts)
    tree = joining_tree(graph, graph.hosts)
    ring = [routes.hosts.index(host) for host in depth_first_order(tree, graph.hosts)]
    assert ring_cost(routes, ring).hops == 2 * len(tree.links)


def test_along_a_line_of_switches_the_order_goes_out_and_comes_back():
    hosts = [f"n{n}" for n in range(20)]
    switches = [f"s{n}" for n in range(20)]
    pairs = [*zip(hosts, switches, strict=True), *zip(switches, switches[1:], strict=False)]
    graph = linked(pairs, hosts=hosts, switches=switches)
    routes = routes_between(graph, hosts)
    order = depth_first_order(joining_tree(graph, hosts), hosts)
    cost = ring_cost(routes, [routes.hosts.index(host) for host in order])
    assert (cost.congestion, cost.hops) == (1.0, 2 * 39)
    assert cost.dilation <= 5
    assert place(graph, hosts).cost == Cost(1.0, 4, 2 * 39)


@pytest.mark.parametrize("seed", [0, 29])
def test_near_and_far_ends_of_sub_trees_take_turns(seed):
    graph = stretched_tree(Random(seed), 25)
    routes = routes_between(graph, graph.hosts)
    order = depth_first_order(joining_tree(graph, graph.hosts), graph.hosts)
    every = np.arange(25)
    best = dilation_bound(routes.distances(every, every))
    assert ring_cost(routes, [routes.hosts.index(host) for host in order]).dilation == best


def test_a_network_with_ways_round_is_no_tree():
    graph = fat_tree(2, 2, 2)
    assert joining_tree(graph, graph.hosts) is None


def test_a_walk_begins_after_the_widest_gap():
    graph = grid_machine((6, 6), (True, True))
    block = [host for host, (x, y) in graph.grids[0].coordinates.items() if x in (5, 0) and y in (4, 5, 0)]
    routes = routes_between(graph, block)
    assert ring_cost(routes, grid_ring(routes)) == Cost(1.0, 1, 6)


def test_hosts_change_places_where_blocks_crowd():
    graph = fat_tree(3, 4, 1)
    routes = routes_between(graph, graph.hosts)
    ring = Random(1).sample(range(12), 12)
    before = ring_cost(routes, ring)
    cost, found = relieved(routes, ring, before, NO_BOUND)
    assert cost == ring_cost(routes, found)
    assert cost.congestion < before.congestion
    assert sorted(found) == list(range(12))
