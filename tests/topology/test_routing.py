from random import Random

import numpy as np
import pytest

from ringmpi.topology.cost import Cost, ring_cost, ring_loads
from ringmpi.topology.graph import Graph
from ringmpi.topology.grid_routes import GridRoutes
from ringmpi.topology.link_routes import LinkRoutes
from ringmpi.topology.routing import routes_between
from tests.topology.machines import cost_of, distances_over_links, fat_tree, grid_machine, linked, random_fabric


def table_of(routes):
    every = np.arange(len(routes.hosts))
    return routes.distances(every, every)


@pytest.mark.parametrize("seed", range(60))
def test_ways_are_shortest_and_begin_where_the_last_cable_ended(seed):
    random = Random(seed)
    graph = random_fabric(random, random.randint(2, 9))
    routes = routes_between(graph, graph.hosts)
    assert table_of(routes).tolist() == distances_over_links(graph, routes.hosts)
    for a, start in enumerate(routes.hosts):
        for b, end in enumerate(routes.hosts):
            way = routes.links(a, b)
            here = start
            for cable in way:
                assert routes.ends[cable][0] == here
                here = routes.ends[cable][1]
            assert here == end
            assert len(way) == table_of(routes)[a, b]


@pytest.mark.parametrize(("shape", "wrap"), [((4, 3, 2), (1, 0, 1)), ((2, 2), (1, 1)), ((7,), (1,)), ((5, 4), (0, 0))])
@pytest.mark.parametrize("hosts_a_place", [1, 2])
def test_ways_on_a_grid_are_as_long_as_those_over_its_links(shape, wrap, hosts_a_place):
    graph = grid_machine(shape, wrap, hosts_a_place=hosts_a_place)
    routes = routes_between(graph, graph.hosts)
    assert isinstance(routes, GridRoutes)
    assert table_of(routes).tolist() == distances_over_links(graph, routes.hosts)
    assert all(len(routes.links(0, b)) == length for b, length in enumerate(table_of(routes)[0]))


def test_a_grid_is_crossed_one_dimension_after_the_other():
    graph = grid_machine((4, 4), (True, True))
    routes = routes_between(graph, graph.hosts)
    way = [routes.ends[cable][1] for cable in routes.links(0, routes.hosts.index("n7"))]  # from (0, 0) to (1, 3)
    assert way == ["n4", "n7"]


def test_a_grid_of_switches_with_one_missing_is_crossed_over_links():
    whole = grid_machine((3, 3), (True, True), hosts_a_place=1)
    grid = whole.grids[0]
    left = {vertex: place for vertex, place in grid.coordinates.items() if vertex != "s4"}
    links = tuple(link for link in whole.links if "s4" not in link.ends)
    hosts = tuple(host for host in whole.hosts if host != "h4")
    graph = Graph("torus", hosts, tuple(left), links, grids=(type(grid)("grid", grid.shape, grid.wrap, left),))
    assert isinstance(routes_between(graph, hosts), LinkRoutes)


def test_hosts_on_several_switches_forward_nothing():
    graph = linked(
        [("a", "s"), ("b", "s"), ("b", "t"), ("c", "t"), ("s", "u"), ("u", "t")], hosts="abc", switches="stu"
    )
    routes = routes_between(graph, graph.hosts)
    assert table_of(routes)[0, 2] == 4  # over u, not through b


def test_destinations_are_dealt_out_over_equal_ways_and_cables():
    graph = fat_tree(2, 4, 4)
    routes = routes_between(graph, graph.hosts)
    over = {routes.ends[routes.links(0, b)[1]] for b in range(4, 8)}
    assert over == {("leaf0", f"spine{n}") for n in range(4)}
    cables = linked([("a", "s"), ("b", "t"), ("c", "t"), ("s", "t", 2.0, 2)], hosts="abc", switches="st")
    routes = routes_between(cables, cables.hosts)
    assert routes.links(0, 1)[1] != routes.links(0, 2)[1]


def test_a_way_between_parts_is_longer_than_any_that_is_known():
    graph = linked([("a", "s"), ("b", "s"), ("c", "t", 0.5), ("d", "t")], hosts="abcd", switches="st")
    routes = routes_between(graph, graph.hosts)
    assert table_of(routes).tolist() == [[0, 2, 3, 3], [2, 0, 3, 3], [3, 3, 0, 2], [3, 3, 2, 0]]
    assert ring_cost(routes, range(4)) == Cost(2.0, 3, 10)  # what is unknown is as slow as the slowest


def test_both_directions_of_a_link_are_counted_alone():
    graph = linked([("a", "s"), ("b", "s")], hosts="ab", switches="s")
    routes = routes_between(graph, graph.hosts)
    assert ring_cost(routes, [0, 1]) == Cost(1.0, 2, 4)
    assert ring_loads(routes, [0, 1]) == {("a", "s"): 1, ("s", "b"): 1, ("b", "s"): 1, ("s", "a"): 1}


def test_a_slow_cable_counts_as_often_as_it_is_slow():
    graph = linked([("a", "s", 10.0), ("b", "s", 10.0), ("c", "t", 10.0), ("s", "t", 2.5)], hosts="abc", switches="st")
    routes = routes_between(graph, graph.hosts)
    assert ring_cost(routes, [0, 1, 2]).congestion == 4.0
    assert ring_cost(routes, [0, 2, 1, 2]).congestion == 8.0  # twice to c, whose host comes twice


@pytest.mark.parametrize("seed", range(20))
def test_costs_are_those_of_the_definition(seed):
    random = Random(seed)
    graph = random_fabric(random, 8)
    routes = routes_between(graph, graph.hosts)
    ring = random.sample(range(8), 8)
    assert ring_cost(routes, ring) == cost_of(routes, ring)
