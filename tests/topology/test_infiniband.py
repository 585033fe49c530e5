"""InfiniBand fabrics: the same cables by every tool, adapters of a host, cables that are slow, layers of switches."""

import re
from collections import Counter

import pytest

from ringmpi.topology.graph import Graph, Link, bundled
from ringmpi.topology.infiniband import gbits, host_and_rail, layered
from tests.topology.texts import CA_ORDER, IBHOSTS, IBNETDISCOVER, IBNETDISCOVER_PORTS, IBSIM, read_text, real

LEAF_ONE, LEAF_TWO, SPINE = "S-00000000000000b0", "S-00000000000000b1", "S-00000000000000c0"


def test_cables_rails_and_rates():
    graph = read_text(IBNETDISCOVER)
    assert graph.hosts == ("n1", "n2", "H-00000000000000a4")
    assert graph.labels == {LEAF_ONE: "leaf one", LEAF_TWO: "leaf two", SPINE: "spine"}
    assert graph.neighbours[LEAF_ONE][SPINE] == Link((LEAF_ONE, SPINE), 2 * 4 * 106.25, 2)
    assert graph.neighbours["n1"][LEAF_ONE] == Link((LEAF_ONE, "n1"), 425.0, 1, ("mlx5_0",))
    assert graph.neighbours["n1"][LEAF_TWO].rails == ("mlx5_1",)
    assert graph.parents["n1"] == (LEAF_ONE, LEAF_TWO)
    assert graph.unit == "Gbit/s"


def test_slow_and_unknown_cables_are_remarked():
    graph = read_text(IBNETDISCOVER)
    assert graph.neighbours[LEAF_TWO][SPINE].capacity == 2 * 106.25  # 2x at one end, 4x at the other
    assert graph.neighbours["H-00000000000000a4"][LEAF_TWO].capacity == 2.5
    assert graph.remarks == (
        "file:21: 425 Gbit/s here, 212.5 at file:16: the lower holds",
        "file:15: 1 adapters name no host (further lines: ); give a map of GUIDs to hosts too",
        "file:15: 1 cables of unknown speed, taken for 2.5 Gbit/s (1xSDR)",
    )


def test_lists_without_cables_say_so():
    assert "no cable is in this file" in read_text(IBHOSTS).remarks[0]
    graph = read_text(real("ibnetdiscover-ca-only.txt"))
    assert (graph.kind, graph.hosts, graph.unlinked) == ("none", ("dgx-gb200-n01-c1",), ("dgx-gb200-n01-c1",))


def test_port_style_tells_the_same():
    graph = read_text(IBNETDISCOVER_PORTS)
    assert graph.parents == {"n1": (LEAF_ONE,), "n2": (LEAF_ONE,)}
    assert graph.neighbours["n1"][LEAF_ONE].capacity == 425.0


def test_rates_of_a_simulated_fabric():
    graph = read_text(IBSIM)
    assert graph.neighbours["n0"]["S-leaf0"].capacity == 10.0
    assert graph.neighbours["n1"]["S-leaf0"].capacity == 10.0  # 4xSDR at the host, 1xQDR at the switch


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("4xNDR", 425.0),
        ("1xSDR", 2.5),
        ("12xQDR", 120.0),
        ("4xFDR10", 41.25),
        ("( 4X  25.78125 Gbps Active/ LinkUp)", 103.125),
    ]
    + [("??x???", None), ("4x???", None), ("", None), ("4xABC", None)],
)
def test_rates(text, rate):
    assert gbits(text) == rate


@pytest.mark.parametrize(
    ("description", "host_and_adapter"),
    [
        ("n1 HCA-2", ("n1", "HCA-2")),
        ("n1 mlx5_0", ("n1", "mlx5_0")),
        ("'fourmi005 HCA-1'", ("fourmi005", "HCA-1")),
        ("n1", ("n1", "")),
        ("MT4129 ConnectX7   Mellanox Technologies", ("", "")),
        ("localhost HCA-1", ("", "")),
        ("", ("", "")),
    ],
)
def test_descriptions(description, host_and_adapter):
    assert host_and_rail(description) == host_and_adapter


def test_the_order_of_opensm_has_no_dummies():
    graph = read_text(CA_ORDER)
    assert (graph.kind, graph.hosts) == ("order", ("n01", "n02", "n03"))


def names_of(text):
    """Descriptions of adapters, by grep: what stands in a Ca line."""
    return re.findall(r'^Ca\t.*# "(.*)"', text, re.MULTILINE)


def test_a_real_fabric_counted_with_regular_expressions():
    text = real("ibnetdiscover-ndr-40sw.txt").decode()
    graph = read_text(text)
    adapters = [name for name in names_of(text) if "Aggregation" not in name]
    named = {name.split()[0] for name in adapters if re.fullmatch(r"(?!localhost)\S+ (HCA-\d+|mlx5_\d+)", name)}
    nameless = sum(not re.fullmatch(r"(?!localhost)\S+ (HCA-\d+|mlx5_\d+)", name) for name in adapters)
    assert (len(adapters), len(named), nameless) == (542, 121, 72)
    assert len(graph.hosts) == len(named) + nameless
    assert len(graph.switches) == len(re.findall(r"^Switch\t", text, re.MULTILINE)) == 40
    ends = re.findall(r'^\[\d+\](?:\(\w+\))?\s+"([SH])-.*$', text, re.MULTILINE)
    aggregation = 2 * text.count('# "Mellanox Technologies Aggregation Node"\n[1]')
    assert sum(link.cables for link in graph.links) == (len(ends) - aggregation) // 2
    assert {link.capacity / link.cables for link in graph.links} == {425.0}


def test_a_real_fabric_is_a_fat_tree():
    graph = read_text(real("ibnetdiscover-ndr-40sw.txt"))
    leaves = [switch for switch in graph.switches if switch in graph.parents]
    assert (graph.kind, len(leaves), len(graph.switches) - len(leaves)) == ("tree", 31, 9)
    assert all("LEAF" in graph.labels[leaf] for leaf in leaves)
    between = Counter(link.cables for link in graph.links if {*link.ends} <= {*graph.switches})
    assert between == {2: 263, 1: 6}
    assert Counter(len(graph.parents[host]) for host in graph.hosts) == {4: 109, 3: 10, 2: 2, 1: 72}


def test_the_manual_has_a_cable_slower_than_its_neighbour():
    graph = read_text(real("ibnetdiscover-sdr-2007.txt"))
    a, b = graph.switches
    assert graph.neighbours[a][b] == Link((a, b), 2.5 + 10.0, 2) or graph.neighbours[a][b].ends == (b, a)
    assert (graph.neighbours[a][b].capacity, graph.neighbours[a][b].cables) == (12.5, 2)
    assert graph.neighbours["H-0008f10403960558"][a].cables == 2  # one adapter with two ports
    assert graph.kind == "fabric"  # both switches hold hosts and are linked: no layers


def test_netloc_and_netq():
    graph = read_text(real("netloc-ib-qdr-134nodes.json"))
    assert (len(graph.hosts), len(graph.switches), sum(link.cables for link in graph.links)) == (125, 9, 402 / 2)
    graph = read_text(real("netq-topologyGraph.json"))
    assert (graph.kind, len(graph.hosts), len(graph.switches), len(graph.links)) == ("tree", 8, 3, 10)
    assert graph.neighbours["net-unit-l1"]["net-unit-s1"].cables == 28
    assert graph.neighbours["dgx-01"]["net-unit-l1"].rails == ("ens1f0np1", "ens1f1np3", "ens4f0np0", "ens4f1np2")


def fabric(*ends):
    vertices = {vertex for pair in ends for vertex in pair}
    switches = tuple(sorted(vertex for vertex in vertices if vertex.isupper()))
    return Graph("fabric", tuple(sorted(vertices - {*switches})), switches, bundled(Link(pair) for pair in ends))


def test_layers():
    two = fabric(("a", "L"), ("b", "L"), ("c", "M"), ("d", "M"), ("L", "S"), ("M", "S"))
    assert layered(two).parents == {"a": ("L",), "b": ("L",), "c": ("M",), "d": ("M",), "L": ("S",), "M": ("S",)}
    assert layered(fabric(("a", "L"), ("b", "M"), ("L", "M"))).kind == "fabric"
    assert layered(fabric(("a", "A"), ("b", "B"), ("c", "C"), ("A", "B"), ("B", "C"), ("C", "A"))).kind == "fabric"


def test_switches_that_no_host_reaches_play_no_part():
    assert layered(fabric(("a", "L"), ("b", "M"), ("L", "S"), ("M", "S"), ("X", "Y"))).kind == "tree"


def test_a_management_host_on_a_spine_makes_it_no_leaf():
    leaves = [(f"{leaf.lower()}{n}", leaf) for leaf in "LMN" for n in range(8)]
    graph = layered(fabric(*leaves, ("L", "S"), ("M", "S"), ("N", "S"), ("boss", "S")))
    assert (graph.kind, graph.parents["L"], graph.parents["boss"]) == ("tree", ("S",), ("S",))
    assert "S" not in graph.parents
