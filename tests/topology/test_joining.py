"""Several files about one machine."""

import pytest

from ringmpi.errors import TopologyError
from ringmpi.topology.building import Source
from ringmpi.topology.graph import EVERY_HOST
from ringmpi.topology.joining import joined
from ringmpi.topology.reading import read, read_source
from tests.topology.texts import CA_ORDER, GUID_MAP, IBNETDISCOVER, NVIDIA_SMI, RING, TREE, real


def together(*texts):
    return joined(
        [(f"file{n}", read_source(Source.of_bytes(f"file{n}", text.encode()))) for n, text in enumerate(texts)]
    )


def test_files_are_read_from_disk(tmp_path):
    (tmp_path / "topology.conf").write_bytes(TREE.encode())
    (tmp_path / "gpus.txt").write_bytes(NVIDIA_SMI.encode())
    graph = read([tmp_path / "gpus.txt", str(tmp_path / "topology.conf")])
    assert (graph.kind, len(graph.hosts)) == ("tree", 8)
    assert graph.inside("n01").of_kind("gpu") == ("GPU0", "GPU1")


def test_a_map_names_adapters_and_switches():
    graph = together(GUID_MAP, IBNETDISCOVER)
    assert graph.hosts == ("n1", "n2")
    assert graph.labels["S-00000000000000b0"] == "rack 1"
    assert graph.neighbours["n2"]["S-00000000000000b1"].rails == ("mlx5_1",)
    assert graph.parents["n2"] == ("S-00000000000000b0", "S-00000000000000b1")
    assert graph.remarks[-1] == "file0: names 1 of 1 adapters without a host, and 1 switches"


def test_two_networks_side_by_side():
    graph = together(TREE, RING)
    assert (graph.kind, len(graph.hosts), len(set(graph.components.values()))) == ("fabric", 17, 3)
    assert graph.parents == {}
    twice = together(TREE, TREE.replace("n[", "m[").replace("leaf", "rack").replace("spine", "top"))
    assert (twice.kind, twice.parents["m08"]) == ("tree", ("rack2",))


@pytest.mark.parametrize("other", [TREE, CA_ORDER], ids=["again", "an order of the same hosts"])
def test_two_networks_over_one_another_are_refused(other):
    with pytest.raises(TopologyError, match="file1: .*: described by an earlier file too"):
        together(TREE, other)


def test_devices_belong_to_the_hosts_of_the_network():
    hosts = "SwitchName=a Nodes=drac-12,drac-13\n"
    power = real("hwloc-power8-gpudistances.xml").decode()
    graph = together(hosts, power, NVIDIA_SMI)
    assert graph.devices.keys() == {"drac-12", EVERY_HOST}
    assert len(graph.inside("drac-12").of_kind("gpu")) == 4
    assert len(graph.inside("drac-13").of_kind("gpu")) == 2
    assert "'drac-12.grenoble.grid5000.fr' is not in any given network" in together(TREE, power).remarks[0]
    with pytest.raises(TopologyError, match="file1: the devices of every host are given twice"):
        together(NVIDIA_SMI, NVIDIA_SMI)


IB_TORUS = "".join(
    f'Switch\t8 "S-{x}{y}"\t# "sw" base port 0 lid 1 lmc 0\n[1] "H-a{x}{y}"[1](a{x}{y}) # "n{x}{y}" lid 1 4xQDR\n'
    f'[2] "S-{(x + 1) % 4}{y}"[3] # "sw" lid 1 4xQDR\n[4] "S-{x}{(y + 1) % 3}"[5] # "sw" lid 1 4xQDR\n'
    for x in range(4)
    for y in range(3)
)


def test_a_torus_of_switches_gets_coordinates():
    seeds = "torus 4 3 1\nxp_link 0x00 0x10\nyp_link 0x00 0x01\n"
    graph = together(IB_TORUS, seeds)
    (grid,) = graph.grids
    assert (graph.kind, grid.shape, grid.wrap) == ("torus", (4, 3, 1), (True, True, True))
    assert {vertex: place[:2] for vertex, place in grid.coordinates.items()} == {
        f"S-{x}{y}".replace("-", "-" + "0" * 14): (x, y) for x in range(4) for y in range(3)
    }
    wrong = together(IB_TORUS, seeds.replace("4 3 1", "6 2 1"))
    assert (wrong.kind, wrong.remarks) == (
        "fabric",
        ("file1: the 12 switches with their cables do not form a whole 6x2x1 from these seeds",),
    )


def test_names_of_hosts():
    graph = together("SwitchName=a Nodes=n1.site.org,n2,n3.a,n3.b\n")
    names = ["n1.site.org", "n1", "n2", "n2.site.org", "n3", "n3.a", "n3.c", "n4", "n1.other.org"]
    site = ["n1.site.org"] * 2
    assert [graph.host(name) for name in names] == [*site, "n2", "n2", None, "n3.a", None, None, None]
