from random import Random

import numpy as np
import pytest

from ringmpi.topology import placement as module
from ringmpi.topology.cost import Cost
from ringmpi.topology.depth_first import joining_tree
from ringmpi.topology.graph import Graph
from ringmpi.topology.placement import place
from tests.topology.machines import fat_tree, grid_machine, linked, random_tree
from tests.topology.placement_campaign import check


@pytest.mark.parametrize("kind", ["trees", "boxes", "holes", "fabrics"])
def test_no_ring_over_few_hosts_is_better(kind):
    for seed in range(15):
        assert check(kind, seed, 7, exhaustive=True) == ((0, 0, 0), True)


@pytest.mark.parametrize(("kind", "share"), [("trees", 1.0), ("boxes", 1.0), ("holes", 0.95), ("fabrics", 0.95)])
def test_rings_are_nearly_always_the_best_without_trying_all(kind, share):
    gaps = [check(kind, seed, 7, exhaustive=False)[0] for seed in range(100, 120)]
    assert gaps.count((0, 0, 0)) >= share * len(gaps)
    assert all(congestion == 0 and dilation <= 1 and hops <= 1 for congestion, dilation, hops in gaps)


@pytest.mark.parametrize("kind", ["trees", "boxes", "holes"])
def test_hops_of_up_to_eleven_hosts_are_the_fewest(kind):
    for seed in range(6):
        (_, dilation, hops), _ = check(kind, seed, 11, exhaustive=True)
        assert hops == 0 or dilation < 0
        assert dilation <= 1


def shuffled(hosts, seed=0):
    return Random(seed).sample(list(hosts), len(hosts))


def crossings(graph, ring):
    """Edges of the ring between hosts on different leaf switches."""
    leaf = [next(iter(graph.neighbours[host])) for host in ring]
    return sum(a != b for a, b in zip(leaf, [*leaf[1:], leaf[0]], strict=True))


@pytest.mark.parametrize("leaves", [2, 3, 8])
def test_each_leaf_switch_is_left_once(leaves):
    graph = fat_tree(leaves, 5, 3)
    found = place(graph, shuffled(graph.hosts))
    assert crossings(graph, found.hosts) == leaves
    assert found.cost == Cost(1.0, 4, 10 * leaves + 2 * leaves)
    assert found.proved_optimal


def test_every_level_of_a_deep_tree_is_left_once():
    hosts = [f"n{n}" for n in range(27)]
    pairs = [(host, f"leaf{n // 3}") for n, host in enumerate(hosts)]
    pairs += [(f"leaf{n}", f"pod{n // 3}") for n in range(9)] + [(f"pod{n}", "root") for n in range(3)]
    switches = [f"leaf{n}" for n in range(9)] + [f"pod{n}" for n in range(3)] + ["root"]
    graph = linked(pairs, hosts=hosts, switches=switches, kind="tree")
    found = place(graph, shuffled(hosts))
    assert found.cost == Cost(1.0, 6, 2 * (27 + 9 + 3))
    assert found.launch_cost.congestion > 1
    assert found.proved_optimal


@pytest.mark.parametrize("seed", range(15))
def test_large_trees_have_the_fewest_hops(seed):
    graph = random_tree(Random(seed), 60)
    found = place(graph, shuffled(graph.hosts))
    assert found.cost.congestion == found.lower_bound.congestion
    assert found.cost.hops == 2 * len(joining_tree(graph, graph.hosts).links)
    assert found.cost.dilation <= found.lower_bound.dilation + 1


@pytest.mark.parametrize("hosts_a_place", [0, 1, 3])
@pytest.mark.parametrize(
    ("shape", "wrap"), [((3, 3, 3), (1, 1, 1)), ((4, 6), (0, 0)), ((5, 3), (0, 0)), ((5, 4), (1, 0))]
)
def test_boxes_and_tori_are_filled_link_by_link(shape, wrap, hosts_a_place):
    graph = grid_machine(shape, wrap, hosts_a_place=hosts_a_place)
    found = place(graph, shuffled(graph.hosts))
    odd = shape == (5, 3)
    below = 2 if hosts_a_place else 0
    assert found.cost == Cost(1.0, 1 + odd + below, np.prod(shape) + odd + below * len(graph.hosts))
    assert found.proved_optimal


def test_a_box_within_a_torus_is_filled_across_its_wrap():
    graph = grid_machine((6, 6), (True, True))
    block = [host for host, (x, y) in graph.grids[0].coordinates.items() if x in (5, 0) and y in (4, 5, 0)]
    found = place(graph, shuffled(block))
    assert found.cost == Cost(1.0, 1, 6)


def test_ten_thousand_hosts_on_a_torus_and_on_a_fat_tree():
    torus = grid_machine((22, 22, 21), (True, True, True))
    assert place(torus, shuffled(torus.hosts)).cost == Cost(1.0, 1, 22 * 22 * 21)
    tree = fat_tree(200, 50, 8)
    found = place(tree, shuffled(tree.hosts))
    assert found.cost == Cost(1.0, 4, 20_000 + 400)
    assert found.proved_optimal


def test_many_holes_in_a_large_torus_leave_a_short_ring():
    torus = grid_machine((10, 10, 10), (True, True, True))
    hosts = shuffled(torus.hosts)[:600]
    found = place(torus, hosts)
    assert found.cost.hops <= 1.2 * found.lower_bound.hops
    assert found.cost.dilation <= 4
    assert found.cost.congestion <= 2
    assert found == place(torus, hosts)


def test_launch_order_stays_where_nothing_better_is_found(monkeypatch):
    graph = fat_tree(2, 8, 3)
    monkeypatch.setattr(
        module, "_best", lambda routes, candidates, bound: (list(range(0, 16, 2)) * 2, Cost(9.0, 9, 9), False)
    )
    assert place(graph, graph.hosts).hosts == graph.hosts


def test_ranks_of_a_host_stay_together():
    graph = linked([("a", "s"), ("b", "s"), ("c", "t"), ("s", "t")], hosts="abc", switches="st")
    found = place(graph, ["c", "a", "b", "a", "c", "b"])
    assert found.hosts == ("a", "b", "c")
    assert found.order == (1, 3, 2, 5, 0, 4)
    assert found.cost == Cost(1.0, 3, 8)
    assert found.launch_cost == Cost(2.0, 3, 16)


def test_hosts_that_are_not_known_end_the_ring():
    graph = Graph(
        "tree",
        hosts=("a", "b", "c", "d"),
        switches=("s",),
        links=linked([("a", "s"), ("b", "s"), ("c", "s")], hosts="abc", switches="s").links,
    )
    found = place(graph, ["x", "c", "d", "a", "b", "x"])
    assert found.unplaced == ("x", "d")
    assert found.hosts == ("a", "b", "c", "x", "d")
    assert found.order == (3, 4, 1, 0, 5, 2)


def test_long_and_short_names_are_one_host():
    graph = linked([("a.cluster", "s"), ("b.cluster", "s")], hosts=["a.cluster", "b.cluster"], switches="s")
    found = place(graph, ["b", "a.cluster", "a"])
    assert found.hosts == ("a.cluster", "b")
    assert found.order == (1, 2, 0)


def test_a_file_that_gives_an_order_is_followed():
    found = place(Graph("order", hosts=("c", "a", "d", "b")), ["a", "b", "c"])
    assert found.hosts == ("c", "a", "b")
    assert not found.proved_optimal


def test_without_any_link_launch_order_stays():
    found = place(Graph("none", hosts=("a", "b", "c")), ["c", "a", "b"])
    assert found.hosts == found.unplaced == ("c", "a", "b")
    assert found.order == (0, 1, 2)
    assert not found.proved_optimal


@pytest.mark.parametrize("hosts", [[], ["a"], ["a", "a"], ["b", "a"]])
def test_jobs_of_few_hosts(hosts):
    graph = linked([("a", "s"), ("b", "s")], hosts="ab", switches="s")
    found = place(graph, hosts)
    assert found.hosts == tuple(sorted(set(hosts)))
    assert found.cost == found.launch_cost == (Cost(1.0, 2, 4) if len(found.hosts) > 1 else Cost(0.0, 0, 0))


def test_parts_of_a_machine_follow_one_another():
    pairs = [(f"n{n}", f"s{n % 3}") for n in range(9)]
    graph = linked(pairs, hosts=[f"n{n}" for n in range(9)], switches=["s0", "s1", "s2"])
    found = place(graph, shuffled(graph.hosts))
    assert crossings(graph, found.hosts) == 3
    assert found.proved_optimal


def test_hosts_with_several_rails_are_gone_through_in_turns():
    pairs = [(host, rail) for host in "abcd" for rail in ("r0", "r1")]
    graph = linked(pairs, hosts="abcd", switches=("r0", "r1"))
    found = place(graph, ["a", "a", "b", "b", "c", "c", "d", "d"])
    assert found.order == (0, 1, 3, 2, 4, 5, 7, 6)
