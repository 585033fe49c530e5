"""The ring that a job takes is never worse than the one that the launcher has given it."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringmpi.topology.cost import Cost
from ringmpi.topology.ring_choice import choose_ring, choose_together
from tests.topology.texts import TREE, read_text

LAUNCHED_IN_TURN = ["n01", "n05", "n02", "n06", "n03", "n07"]
ORDER = "0x0001\tn03\n0x0002\tn01\n0xFFFF\tDUMMY\n0x0003\tn02\n"


def leavings(hosts, order):
    """Edges of a ring that leave a host."""
    around = [hosts[rank] for rank in order]
    return sum(a != b for a, b in pairwise([*around, around[0]]))


def links(graph, hosts, order):
    """Links on all edges of a ring, each found by a search of its own."""
    around = [hosts[rank] for rank in order]
    return sum(graph.distances(a)[b] for a, b in pairwise([*around, around[0]]))


def test_a_ring_that_costs_less_is_taken_from_rank_0_on():
    choice = choose_ring("site.conf", read_text(TREE), ["n05", *LAUNCHED_IN_TURN])
    assert choice.order[0] == 0
    assert sorted(choice.order) == list(range(7))
    assert [["n05", *LAUNCHED_IN_TURN][rank] for rank in choice.order][:2] == ["n05", "n05"]
    assert (choice.launch_cost.congestion, choice.cost.congestion, choice.proved_optimal) == (3, 1, True)
    assert "site.conf: ring placed over 6 hosts, launch order -> ring: congestion 3 -> 1" in choice.sentence()


@pytest.mark.parametrize("hosts", [["n01", "n02", "n05", "n06"], ["n07", "n05", "n01"], ["n01"] * 3])
def test_an_order_that_is_as_good_stays(hosts):
    choice = choose_ring("site.conf", read_text(TREE), hosts)
    assert not choice.moved
    assert choice.cost == choice.launch_cost
    assert "launch order kept" in choice.sentence()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([f"n{n:02}" for n in range(1, 9)] + ["login"]), min_size=1, max_size=12))
def test_never_worse_than_launch_order(hosts):
    graph = read_text(TREE)
    choice = choose_ring("site.conf", graph, hosts)
    assert sorted(choice.order) == list(range(len(hosts)))
    assert choice.order[0] == 0
    assert choice.lower_bound <= choice.cost <= choice.launch_cost
    if "login" in hosts:
        assert choice.unplaced == ("login",)
    else:
        assert choice.cost.hops == links(graph, hosts, choice.order)
        assert choice.launch_cost.hops == links(graph, hosts, range(len(hosts)))
    if choice.moved:
        assert leavings(hosts, choice.order) == len(set(hosts))


def test_a_file_that_only_orders_hosts_is_followed():
    choice = choose_ring("order", read_text(ORDER), ["n01", "n02", "n03"])
    assert choice.order == (0, 1, 2)  # n01 n02 n03 is n03 n01 n02, told from rank 0 on
    assert choose_ring("order", read_text(ORDER), ["n02", "n01", "n03"]).order == (0, 2, 1)
    assert choice.cost == Cost(0, 0, 0)
    assert "no link is known" in choice.sentence()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12))
def test_ranks_of_a_host_come_together_only_where_that_helps(hosts):
    choice = choose_together(hosts)
    least, launched = len(set(hosts)) if len(set(hosts)) > 1 else 0, leavings(hosts, range(len(hosts)))
    if choice is None:
        assert launched == least
    else:
        assert launched > leavings(hosts, choice.order) == least
        first = [hosts[rank] for rank in choice.order]
        assert list(dict.fromkeys(first)) == list(dict.fromkeys(hosts))  # hosts stay as the launcher has them
        assert all(a < b for a, b in pairwise(choice.order) if hosts[a] == hosts[b])
