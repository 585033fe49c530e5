"""Placement against the best of all rings, on random machines.

A sample runs with the tests. The whole campaign, an hour or so:

    python -m tests.topology.placement_campaign 3000
"""

import sys
from collections import Counter
from random import Random
from unittest.mock import patch

import numpy as np

from ringmpi.topology import placement as module
from ringmpi.topology.placement import place
from ringmpi.topology.routing import routes_between
from tests.topology.machines import (
    best_of_all,
    cost_of,
    grid_machine,
    least_hops_and_dilation,
    random_fabric,
    random_tree,
)


def random_shape(random, most):
    while True:
        shape = [random.randint(1, 5) for _ in range(random.randint(1, 3))]
        if 1 < np.prod(shape) <= most:
            return shape


def random_box(random, count):
    """A whole box, each dimension wrapped or not, of switches or of hosts."""
    shape = random_shape(random, count)
    graph = grid_machine(shape, [random.random() < 0.5 for _ in shape], hosts_a_place=random.randint(0, 1))
    return graph, graph.hosts


def random_holes(random, count):
    """Some hosts of a box."""
    shape = random_shape(random, 60)
    graph = grid_machine(shape, [random.random() < 0.5 for _ in shape])
    return graph, random.sample(graph.hosts, min(len(graph.hosts), count))


def whole(machine):
    def drawn(random, count):
        graph = machine(random, random.randint(2, count))
        return graph, graph.hosts

    return drawn


MACHINES = {"trees": whole(random_tree), "boxes": random_box, "holes": random_holes, "fabrics": whole(random_fabric)}


def check(kind, seed, most, *, exhaustive):
    """Place one random job; return by how many fields its cost is above the best, and whether it was proved.

    What every placement keeps is asserted here.
    """
    random = Random(seed)
    graph, hosts = MACHINES[kind](random, most)
    hosts = random.sample(hosts, len(hosts))
    with patch.object(module, "FEW_HOSTS", module.FEW_HOSTS if exhaustive else 0):
        found = place(graph, hosts)
        again = place(graph, random.sample(hosts, len(hosts)))
    routes = routes_between(graph, hosts)
    number = {host: index for index, host in enumerate(routes.hosts)}
    ring = [number[host] for host in found.hosts]
    back = [ring[0], *ring[:0:-1]]
    assert cost_of(routes, ring) == found.cost
    assert ring[0] == 0
    assert ring <= back or cost_of(routes, back) > found.cost  # of two directions the one that counts upwards
    assert cost_of(routes, [number[host] for host in hosts]) == found.launch_cost >= found.cost
    assert again.cost == found.cost
    assert again.hosts == found.hosts
    bound = found.lower_bound
    if len(hosts) <= 8:
        best = best_of_all(routes)
        assert best.congestion >= bound.congestion
        assert best.dilation >= bound.dilation
        assert best.hops >= bound.hops
        assert found.cost == best or not found.proved_optimal
        gap = found.cost.congestion - best.congestion, found.cost.dilation - best.dilation, found.cost.hops - best.hops
        return gap, found.proved_optimal
    every = np.arange(len(hosts))
    hops, dilation = least_hops_and_dilation(routes.distances(every, every).tolist())
    assert hops >= bound.hops
    assert dilation >= bound.dilation
    return (0.0, found.cost.dilation - dilation, found.cost.hops - hops), found.proved_optimal


def main() -> None:
    """Run all kinds, with and without the exhaustive search, and say how many rings are the best."""
    count = int(sys.argv[1])
    for kind in MACHINES:
        for most, exhaustive in ((8, True), (8, False), (12, True)):
            results = [
                check(kind, seed, most, exhaustive=exhaustive) for seed in range(count if most == 8 else count // 10)
            ]
            gaps = Counter(gap for gap, _ in results)
            print(kind, most, "exhaustive" if exhaustive else "searched", len(results), "jobs,", end=" ")  # noqa: T201
            print(gaps[0.0, 0, 0], "best,", sum(proved for _, proved in results), "proved, gaps", dict(gaps))  # noqa: T201


if __name__ == "__main__":
    main()
