"""Hosts find the switches that they hang on by what they can send each other while all of them send."""

import os
import time

import numpy as np
import pytest

from ringmpi.placing.link_rates import TOURNAMENTS, tournament
from ringmpi.topology.measured import as_toml, graph_of_rates
from ringmpi.topology.measured_cache import KEPT_SECONDS, cache_file, keep_graph, kept_graph
from ringmpi.topology.ring_choice import choose_ring
from tests.topology.shared_links import SharedLinks, measured
from tests.topology.texts import read_text


def leaves_of(graph):
    """The sets of hosts that hang on one switch."""
    groups = {}
    for host in graph.hosts:
        groups.setdefault(graph.parents[host], set()).add(host)
    return {frozenset(group) for group in groups.values()}


def found(network, hosts, *, noise=0.0, seed=1):
    rng = np.random.default_rng(seed)
    rounds_of = [tournament(len(hosts), seed + n) for n in range(TOURNAMENTS)]
    rates = measured(network, hosts, rounds_of, rng, noise)
    latencies = 1e-5 * (1 + 0.3 * rng.random((len(hosts), len(hosts))))
    np.fill_diagonal(latencies, 0)
    return graph_of_rates(hosts, rates, (latencies + latencies.T) / 2)


def names(*counts):
    """Hosts of leaves, so many on each."""
    return [[f"n{leaf}{host}" for host in range(count)] for leaf, count in enumerate(counts)]


@pytest.mark.parametrize("counts", [(4, 4), (3, 5), (5, 2), (8, 8, 8), (6, 6, 6, 6), (2, 2)])
@pytest.mark.parametrize("uplink", [25e6, 12e6])
def test_hosts_of_one_leaf_are_found_whatever_their_order(counts, uplink, rng):
    """With four hosts a leaf and uplinks as fast as a host, no pair that is alone would show where the leaves are."""
    leaves = names(*counts)
    hosts = list(rng.permutation([host for leaf in leaves for host in leaf]))
    graph = found(SharedLinks(leaves, uplink=uplink), hosts, noise=0.1)
    assert leaves_of(graph) == {frozenset(leaf) for leaf in leaves}


def test_the_ring_of_measured_rates_leaves_each_leaf_once(rng):
    leaves = names(6, 6, 6)
    hosts = list(rng.permutation([host for leaf in leaves for host in leaf]))
    choice = choose_ring("rates", found(SharedLinks(leaves), hosts, noise=0.1), hosts)
    around = [hosts[rank][1] for rank in choice.order]
    assert sum(a != b for a, b in zip(around, around[1:] + around[:1], strict=True)) == 3


def test_a_host_with_a_slow_link_hangs_where_the_others_of_its_leaf_do(rng):
    leaves = names(4, 4)
    network = SharedLinks(leaves, slow={"n02": 15e6})
    graph = found(network, [host for leaf in leaves for host in leaf], noise=0.05)
    assert leaves_of(graph) == {frozenset(leaf) for leaf in leaves}
    slow = graph.neighbours["n02"][graph.parents["n02"][0]].capacity
    assert 0.1 < slow < 0.13 < graph.neighbours["n01"][graph.parents["n01"][0]].capacity


@pytest.mark.parametrize("counts", [(4, 4), (6, 3), (8, 8)])
def test_a_link_between_switches_has_what_it_carries_while_all_hosts_send(counts, rng):
    leaves = names(*counts)
    graph = found(SharedLinks(leaves), list(rng.permutation([host for leaf in leaves for host in leaf])))
    carried = [link.capacity for link in graph.links if not set(link.ends) & set(graph.hosts)]
    assert carried == pytest.approx([0.2] * len(counts), rel=0.25)  # Gbit/s; in some rounds nobody fills it


@pytest.mark.parametrize("hosts", [2, 3, 9])
def test_no_switches_are_made_up_where_all_are_equally_far(hosts, rng):
    network = SharedLinks(names(hosts))
    assert len(found(network, names(hosts)[0], noise=0.1).switches) == 1


def test_latencies_decide_where_rates_do_not(rng):
    rates = np.full((6, 6), 1e9)
    leaf = np.arange(6) % 2
    latencies = np.where(leaf[:, None] == leaf, 1e-6, 1.8e-6) * (1 + 0.1 * rng.random((6, 6)))
    for table in (rates, latencies):
        np.fill_diagonal(table, 0)
    graph = graph_of_rates("abcdef", rates, latencies)
    assert leaves_of(graph) == {frozenset("ace"), frozenset("bdf")}


def test_a_measured_network_is_a_file_like_any_other(rng):
    leaves = names(3, 4)
    graph = found(SharedLinks(leaves), [host for leaf in leaves for host in leaf], noise=0.1)
    again = read_text(as_toml(graph, ["a remark"]))
    assert (again.kind, again.unit, again.parents) == (graph.kind, graph.unit, graph.parents)
    assert {link.ends: link.capacity for link in again.links} == {link.ends: link.capacity for link in graph.links}


@pytest.mark.parametrize("hosts", [2, 3, 4, 7, 8])
def test_in_a_tournament_each_pair_meets_once_and_nobody_twice_a_round(hosts):
    rounds = list(tournament(hosts, 3))
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(rounds) == hosts - 1 + hosts % 2
    assert len(met) == len(set(met)) == hosts * (hosts - 1) // 2
    assert all(len({host for pair in pairs for host in pair}) == 2 * len(pairs) for pairs in rounds)


# What is kept


HOSTS = ("n00", "n01", "n10", "n11")
KEPT = 'unit = "Gbit/s"\n[[switch]]\nname = "s"\nhosts = "n00,n01,n10,n11"\n'


def test_what_was_measured_is_kept_for_the_same_hosts_in_any_order(tmp_path):
    path = cache_file(HOSTS, {"XDG_CACHE_HOME": str(tmp_path)})
    assert path == cache_file(reversed(HOSTS), {"XDG_CACHE_HOME": str(tmp_path)})
    assert path != cache_file(HOSTS[:3], {"XDG_CACHE_HOME": str(tmp_path)})
    assert cache_file(HOSTS, {"HOME": "/home/me"}).parent.as_posix() == "/home/me/.cache/ringmpi"
    assert kept_graph(path, HOSTS) is None
    assert keep_graph(path, read_text(KEPT)) == ""
    assert kept_graph(path, HOSTS).parents == read_text(KEPT).parents
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_what_is_old_damaged_or_of_others_is_measured_again(tmp_path):
    path = cache_file(HOSTS, {"XDG_CACHE_HOME": str(tmp_path)})
    keep_graph(path, read_text(KEPT))
    assert kept_graph(path, (*HOSTS[:3], "n99")) is None
    os.utime(path, (0, time.time() - KEPT_SECONDS - 1))
    assert kept_graph(path, HOSTS) is None
    path.write_text("[[switch]\n")
    assert kept_graph(path, HOSTS) is None


def test_a_cache_without_room_leaves_nothing_and_one_that_is_kept_may_be_read_by_all(tmp_path, monkeypatch):
    path = cache_file(HOSTS, {"XDG_CACHE_HOME": str(tmp_path)})
    with monkeypatch.context() as patch:
        patch.setattr("ringmpi.topology.measured_cache.as_toml", lambda *_: "\udc80")  # fails once the file is open
        with pytest.raises(UnicodeEncodeError):
            keep_graph(path, read_text(KEPT))
    assert list(path.parent.iterdir()) == []
    keep_graph(path, read_text(KEPT))
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "ringmpi").write_text("a file, not a folder")
    failure = keep_graph(cache_file(HOSTS, {"XDG_CACHE_HOME": str(tmp_path)}), read_text(KEPT))
    assert "File exists" in failure or "Not a directory" in failure
