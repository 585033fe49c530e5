"""What is written for SimGrid says what a run does, and what a missing simulator means."""

import re
from collections import Counter
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings

from ringmpi import Mask
from ringmpi.errors import ConfigError, StorageError
from ringmpi.planner.balance import read_pass
from ringmpi.planner.machines import Rates
from ringmpi.planner.network import Network
from ringmpi.planner.orders import ring_orders
from ringmpi.planner.replay import first_steps, write_platform, write_trace
from ringmpi.planner.roofline import flops_a_pair
from ringmpi.planner.simgrid import compare
from tests.planner.problems import problem
from tests.planner.test_plan_and_run import problems, run
from tests.topology.machines import fat_tree

RATES = Rates(1e9, 2e6, "")


def trace_of(folder, asked):
    """Of every rank, what it does, word by word."""
    listed = write_trace(folder, asked, read_pass(asked)).read_text().splitlines()
    return [[line.split() for line in (folder / "below" / name).resolve().read_text().splitlines()] for name in listed]


@given(problems())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_the_trace_moves_and_computes_what_a_run_does(tmp_path_factory, problem):
    folder = tmp_path_factory.mktemp("replay")
    actions = trace_of(folder, problem)
    timelines = [forward.timeline for forward in run(problem)]
    for rank, (words, timeline) in enumerate(zip(actions, timelines, strict=True)):
        sent = sum(int(word[4]) for word in words if word[1] == "isend")
        received = sum(int(word[4]) for word in words if word[1] == "irecv")
        flops = sum(int(word[2]) for word in words if word[1] == "compute")
        assert {word[0] for word in words} == {str(rank)}
        assert sent == timeline.bytes_sent.sum()
        assert received == timeline.bytes_received.sum()
        assert flops * problem.heads.query_slabs == timeline.pairs_attended.sum() * flops_a_pair(problem.heads)


@given(problems())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_every_message_has_two_ends_and_each_end_waits_for_it_once(tmp_path_factory, problem):
    check_messages(trace_of(tmp_path_factory.mktemp("replay"), problem))


def test_two_ranks_that_are_neighbours_twice_tell_their_messages_apart(tmp_path):
    check_messages(trace_of(tmp_path, problem(640, 2, mask=Mask.full(), schedule="bidirectional")))


def check_messages(trace):
    sends, receives, waits, sizes = Counter(), Counter(), Counter(), {}
    for rank, actions in enumerate(trace):
        for name, *words in (word[1:] for word in actions if word[1] in ("isend", "irecv", "wait")):
            if name == "wait":
                waits[rank, *words] += 1
                continue
            ends = (rank, int(words[0])) if name == "isend" else (int(words[0]), rank)
            (sends if name == "isend" else receives)[*ends, words[1]] += 1
            assert sizes.setdefault((*ends, words[1]), words[2]) == words[2]
    assert sends == receives
    assert max([*sends.values(), *waits.values()], default=1) == 1
    assert len(waits) == 2 * len(sends)


def test_first_steps_end_the_pass(tmp_path):
    asked = problem(640, 4, mask=Mask.full(), schedule="bidirectional")
    tables = first_steps(read_pass(asked), 2)
    text = (write_trace(tmp_path, asked, tables).parent / "rank0.txt").read_text()
    assert text.count("compute") == 2
    assert text.count("isend") == text.count("irecv") == 2  # each way, before step 1


def test_the_platform_has_the_ways_of_the_ring(tmp_path):
    graph = fat_tree(2, 4, 1)
    asked, network = problem(640, 16), Network(graph, [h for h in graph.hosts for _ in "ab"], RATES, 1e-6)
    write_platform(tmp_path, asked, network, ring_orders(network)["launch"])
    zone = ElementTree.parse(tmp_path / "platform.xml").getroot()[0]
    hosts = (tmp_path / "hosts").read_text().split()
    routes = {(r.get("src"), r.get("dst")): [link.get("id") for link in r] for r in zone.iter("route")}
    assert hosts == [f"h{n // 2}" for n in range(16)]
    assert routes.keys() == {(hosts[rank - 1], hosts[rank]) for rank in range(16)}
    assert {host.get("core") for host in zone.iter("host")} == {"2"}
    for (a, b), way in routes.items():
        cables = network.routes.links(int(a[1:]), int(b[1:]))
        assert [link for link in way if link != "even"] == ([f"c{cable}" for cable in cables] or ["inside"])
    assert {len(way) for way in routes.values()} == {4}, "every way is as heavy as the heaviest"
    shared = {link.get("id") for link in zone.iter("link") if link.get("sharing_policy") == "SHARED"}
    assert all(re.fullmatch(r"c\d+", name) for name in shared)


def test_without_smpirun_the_files_are_there_and_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    graph = fat_tree(2, 2, 1)
    asked, network = problem(640, 4), Network(graph, graph.hosts, RATES, 1e-6)
    with pytest.raises(ConfigError, match="apt-get install libsimgrid-dev"):
        compare(tmp_path / "sim", asked, read_pass(asked), network, ring_orders(network))
    assert (tmp_path / "sim" / "placed" / "platform.xml").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Name another folder"):
        compare(tmp_path / "file", asked, read_pass(asked), network, ring_orders(network))


@pytest.mark.parametrize(("says", "code"), [("assertion failed", 6), ("nothing", 0), ("Simulation time 1.0", 1)])
def test_what_smpirun_says_is_passed_on(tmp_path, monkeypatch, says, code):
    program = tmp_path / "smpirun"
    program.write_text(f"#!/bin/sh\necho {says}\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    graph = fat_tree(2, 2, 1)
    asked, network = problem(640, 4), Network(graph, graph.hosts, RATES, 1e-6)
    with pytest.raises(ConfigError, match=f"smpirun failed .* exit code {code}; it says: {says}"):
        compare(tmp_path / "sim", asked, read_pass(asked), network, {"launch": (0, 1, 2, 3)})
