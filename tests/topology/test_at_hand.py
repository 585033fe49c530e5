"""What a job finds out about its network by itself."""

import pytest

from ringmpi.topology.at_hand import ADDRESS, PATTERN, Whereabouts, network_at_hand


def ranks(*told):
    return [Whereabouts(*each) for each in told]


def test_a_rank_reads_what_slurm_gives_its_task():
    environment = {ADDRESS: "spine.leaf0.n1", PATTERN: "switch.switch.node", "HOME": "/root"}
    assert Whereabouts.here("n1", environment) == ("n1", "spine.leaf0.n1", "switch.switch.node")
    assert Whereabouts.here("n1", {}) == ("n1", "", "")


def test_addresses_of_all_tasks_make_a_tree_of_the_nodes_that_slurm_names():
    pattern = "switch.switch.node"
    network, remarks = network_at_hand(
        ranks(
            ("host0.site", "spine.leaf0.n0", pattern),
            ("host4.site", "spine.leaf1.n4", pattern),
            ("host0.site", "spine.leaf0.n0", pattern),
            ("host1.site", "spine.leaf0.n1", pattern),
        )
    )
    assert (network.source, network.hosts, remarks) == (ADDRESS, ("n0", "n4", "n0", "n1"), ())
    assert network.graph.parents["n1"] == ("leaf0",)
    assert network.graph.parents["n4"] == ("leaf1",)


@pytest.mark.parametrize(
    "told",
    [
        # mpirun hands the environment of the node it runs on to all ranks
        [("n0", "leaf0.n0", "switch.node"), ("n4", "leaf0.n0", "switch.node")],
        # one rank of a host has that of another
        [("n0", "leaf0.n0", "switch.node"), ("n4", "leaf1.n4", "switch.node"), ("n4", "leaf0.n0", "switch.node")],
    ],
)
def test_an_address_of_another_node_is_not_believed(told):
    network, (remark,) = network_at_hand(ranks(*told))
    assert network is None
    assert "that of another node on some ranks" in remark
    assert "scontrol show topology" in remark


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ([("n0", "", ""), ("n1", "", "")], ()),
        ([("n0", "leaf0.n0", "switch.node"), ("n1", "", "")], ()),  # started by hand on one of them
        ([("n0", "n0", "node"), ("n1", "n1", "node")], ()),  # a flat network
        ([("n0", "n0", "switch.node"), ("n1", "leaf.n1", "switch.node")], "does not have the fields of its pattern"),
        ([("n0", "leaf.n0", "switch.node"), ("n1", "b.n1", "block.node")], "are mixed"),
    ],
)
def test_where_slurm_tells_nothing_of_use_nothing_is_known(told, says):
    network, remarks = network_at_hand(ranks(*told))
    assert network is None
    assert (says in remarks[0]) if says else remarks == ()


def test_names_of_hosts_may_be_places():
    network, remarks = network_at_hand(ranks(*((f"x1000c{c}s0b0n{n}", "", "") for c in (0, 1) for n in (0, 1))))
    assert (network.source, remarks) == ("names of hosts", ())
    assert network.graph.parents["x1000c1"] == ("x1000",)
