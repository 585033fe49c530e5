"""The scaling study: its figures are those of the planner as it is, and its broadcasts reach everybody."""

import numpy as np
import pytest

from docs import scaling
from docs.collectives import binomial_rounds, binomial_seconds, scattered_seconds, two_level_seconds
from docs.fabrics import dragonfly, dragonfly_of_nodes, fat_tree
from ringmpi.planner.machines import Rates
from ringmpi.planner.network import Network


@pytest.mark.parametrize("name", scaling.FABRICS)
def test_kept_figures_are_what_the_planner_says(name):
    ranks, length = 64, scaling.LENGTHS["1M"]
    kept = next(
        c for c in scaling.results()["cases"] if (c["fabric"], c["ranks"], c["length"]) == (name, ranks, length)
    )
    for order, found in scaling.orders(name, ranks, length).items():
        assert found == pytest.approx(kept["orders"][order]), "run: python -m docs.scaling"


def test_kept_figures_of_nodes_and_schedules_are_what_the_planner_says(monkeypatch):
    monkeypatch.setattr(scaling, "COMPARED", (64,))
    kept = next(case for case in scaling.results()["nodes"] if case["ranks"] == 64)
    assert next(scaling.nodes()) == pytest.approx(kept)


def test_the_fabrics_are_as_large_as_the_page_says():
    sizes = {name: len(scaling.fabric(name).hosts) for name in scaling.FABRICS}
    assert sizes == {"torus 8x8x8": 512, "torus 16x16x16": 4096, "fat tree, 2:1": 4096, "dragonfly": 4096}
    tree = scaling.fabric("fat tree, 2:1")
    up = [link for link in tree.links if {end[:3] for end in link.ends} == {"lea", "pod"}]
    assert sum(link.cables for link in up) == 4096 / 2
    assert sum(link.cables for link in tree.links if any(end.startswith("core") for end in link.ends)) == 4096 / 2


def test_routers_of_a_dragonfly_share_the_cables_between_groups():
    graph = dragonfly(8, 4, 2, cables=2)
    group = {router: int(router[1:]) // 4 for router in graph.switches}
    between = [
        link
        for link in graph.links
        if {end[0] for end in link.ends} == {"r"} and len({group[e] for e in link.ends}) > 1
    ]
    pairs = {tuple(sorted(group[end] for end in link.ends)) for link in between}
    assert len(pairs) == 28
    assert sum(link.cables for link in between) == 2 * 28
    ports = [sum(link.cables for link in between if router in link.ends) for router in graph.switches]
    assert max(ports) - min(ports) <= 1


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 64])
def test_a_binomial_tree_reaches_everybody_once(size):
    have = {0}
    for senders, targets in binomial_rounds(size):
        assert set(senders.tolist()) <= have
        assert not have & set(targets.tolist())
        have |= set(targets.tolist())
    assert have == set(range(size))
    assert len(list(binomial_rounds(size))) == (size - 1).bit_length()


def test_broadcasts_on_a_full_tree_take_what_they_must():
    """Without latency: log2 P blocks in a row for the tree, two blocks less two shares when scattered."""
    graph = fat_tree(1, 4, 4, up=4)
    network = Network(graph, graph.hosts, Rates(1e12, 1e9, ""), 0.0)
    assert binomial_seconds(network, network.launch, 3, 1 << 20) == pytest.approx(4 * (1 << 20) / 1e9)
    assert scattered_seconds(network, network.launch, 3, 1 << 20) == pytest.approx(2 * 15 / 16 * (1 << 20) / 1e9)


def test_two_levels_of_rings_use_all_ports():
    graph = dragonfly_of_nodes(2, 4, 4, cables=4, a_node=8, ports=4)
    network = Network(graph, graph.hosts, Rates(1e12, 2e9, ""), 0.0)
    nodes = len(graph.hosts) // 8
    seconds = two_level_seconds(network, np.asarray(network.launch), 8, 1 << 20)
    assert seconds == pytest.approx(nodes * 8 * (1 << 20) / 2e9), "the links inside are the bound"
