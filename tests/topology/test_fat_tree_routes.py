"""Routes up a fat tree: no two hosts of a shift share a cable where a switch has as many cables up as down."""

from collections import Counter

import pytest

from docs.fabrics import fat_tree
from ringmpi.topology.routing import routes_between


@pytest.mark.parametrize(("pods", "leaves", "hosts"), [(2, 4, 4), (3, 2, 3), (1, 4, 2), (4, 8, 4)])
def test_a_shift_passes_every_cable_of_a_full_fat_tree_at_most_once(pods, leaves, hosts):
    """Zahavi 2012, theorem 1: D-mod-k routes of any shift are free of contention."""
    graph = fat_tree(pods, leaves, hosts, up=hosts)
    routes = routes_between(graph, graph.hosts)
    count = len(routes.hosts)
    for shift in range(1, count):
        loads = Counter(cable for a in range(count) for cable in routes.links(a, (a + shift) % count))
        assert max(loads.values()) == 1, f"shift {shift}"


def test_a_tapered_tree_carries_the_taper():
    """With half the cables up, two blocks are on the busiest of them where all hosts send to another leaf."""
    graph = fat_tree(2, 4, 4, up=2)
    routes = routes_between(graph, graph.hosts)
    loads = Counter(cable for a in range(32) for cable in routes.links(a, (a + 16) % 32))
    assert max(loads.values()) == 2
