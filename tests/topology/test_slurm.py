"""Slurm's trees, blocks, rings and toruses, from its files, from scontrol and from the tasks' environment."""

import pytest

from ringmpi.errors import TopologyError
from ringmpi.topology.building import Source
from ringmpi.topology.readers import slurm_address, slurm_yaml
from tests.topology.texts import ADDRESSES, BLOCKS, RING, SCONTROL_BLOCKS, SCONTROL_TREE, TREE, YAML, read_text


def test_a_tree_knows_what_is_above():
    graph = read_text(TREE)
    assert graph.parents["n01"] == ("leaf1",)
    assert graph.parents["leaf2"] == ("spine",)
    assert "spine" not in graph.parents
    assert graph.distances("n01") | {"n08": 4, "n02": 2} == graph.distances("n01")


def test_scontrol_says_what_the_file_says():
    assert read_text(SCONTROL_TREE).parents == read_text(TREE).parents


def test_several_spines_above_each_leaf():
    spines = "".join(f"SwitchName=spine{n} Switches=leaf[1-2]\n" for n in range(4))
    graph = read_text(spines + "SwitchName=leaf1 Nodes=a[1-2]\nSwitchName=leaf2 Nodes=b[1-2]\n")
    assert graph.parents["leaf1"] == ("spine0", "spine1", "spine2", "spine3")
    assert len(set(graph.components.values())) == 1


def test_unbalanced_and_disconnected_trees():
    upper = "SwitchName=top Switches=leaf1,mid\nSwitchName=mid Switches=leaf2\n"
    graph = read_text(upper + "SwitchName=leaf1 Nodes=a[1-2]\nSwitchName=leaf2 Nodes=b[1-2]\n")
    assert (graph.parents["leaf1"], graph.parents["leaf2"], graph.parents["mid"]) == (("top",), ("mid",), ("top",))
    assert graph.distances("a1")["b1"] == 5
    apart = read_text("SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=m[1-2]\n")
    assert len(set(apart.components.values())) == 2
    assert apart.remarks == ("file:1: 2 parts without a common root: no path is known between their hosts",)


def test_a_switch_without_a_line_is_remarked():
    assert read_text("SwitchName=a Switches=b,c\nSwitchName=b Nodes=n1\n").remarks == (
        "file:1: switch c is below a but has no line of its own",
    )


def test_a_switch_may_bear_the_name_of_a_host():
    graph = read_text("SwitchName=n1 Nodes=n[1-2]\n")
    assert (graph.hosts, graph.switches) == (("n1", "n2"), ("switch n1",))


def test_keys_in_any_case_quotes_and_continued_lines():
    graph = read_text('SWITCHNAME = top switches="leaf1" # comment\nSwitchName=leaf1 \\\nNodes=n[1-3]\n')
    assert (graph.hosts, graph.parents["n3"], graph.parents["leaf1"]) == (("n1", "n2", "n3"), ("leaf1",), ("top",))


def test_blocks_are_put_together_as_sizes_say():
    graph = read_text(BLOCKS)
    assert graph.parents["b1"] == graph.parents["b2"] == ("b1..b2",)
    assert graph.parents["b3"] == graph.parents["b1..b2"] == ("all blocks",)
    assert read_text(SCONTROL_BLOCKS).parents["b2"] == ("b1..b2",)
    assert read_text("BlockName=a Nodes=n1\nBlockName=b Nodes=n2\n").parents["a"] == ("all blocks",)


def test_a_ring_has_positions_in_the_order_of_the_line():
    graph = read_text(RING)
    first, second = graph.grids
    assert (first.shape, first.wrap, first.coordinates["n6"]) == ((6,), (True,), (5,))
    assert second.coordinates == {"m3": (0,), "m1": (1,), "m2": (2,)}
    assert graph.neighbours["n1"].keys() == {"n2", "n6"}


def layout(name):
    return slurm_yaml.read(Source("file", YAML), name)


def test_yaml_holds_several_layouts_and_a_default():
    assert read_text(YAML).grids[0].name == "pod1"
    assert layout("plain").parents["n03"] == ("s2",)
    assert layout("blocks").parents["b1"] == ("b1..b2",)
    assert layout("circle").neighbours["c1"].keys() == {"c2", "c5"}
    assert layout("nothing").remarks == ("file:24: a flat layout names no nodes and no links",)
    with pytest.raises(TopologyError, match="no layout is called 'x'; there are plain, cube"):
        layout("x")


def test_a_torus_runs_along_x_first():
    grid = layout("cube").grids[0]
    assert grid.coordinates["t02"] == (1, 0, 0)
    assert grid.coordinates["t05"] == (0, 1, 0)
    assert grid.coordinates["t13"] == (0, 0, 1)
    neighbours = layout("cube").neighbours["t01"]
    assert neighbours.keys() == {"t02", "t04", "t05", "t09", "t13"}  # the third dimension has two places and one cable
    assert all(link.cables == 1 for link in neighbours.values())


def test_regions_leave_holes():
    graph = layout("holes")
    assert graph.grids[0].coordinates == {"u1": (1, 0, 0), "u2": (2, 0, 0), "u3": (1, 1, 0), "u4": (2, 1, 0)}
    assert graph.neighbours["u1"].keys() == {"u2", "u3"}


@pytest.mark.parametrize(("x", "dims"), [(2, 2), (3, 2)], ids=["overlap", "outside"])
def test_regions_that_do_not_fit_are_refused(x, dims):
    more = f'{{anchor: {{x: {x}, y: 0, z: 0}}, dims: {{x: {dims}, y: 1, z: 1}}, nodes: "v[1-2]"}}'
    text = YAML.replace('nodes: "u[1-4]"}', f'nodes: "u[1-4]"}}\n          - {more}')
    with pytest.raises(TopologyError, match="file:20: place .* is outside the torus .* or held already"):
        slurm_yaml.read(Source("file", text), "holes")


def test_yaml_is_optional(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    with pytest.raises(TopologyError, match="pip install PyYAML"):
        read_text(YAML)


def test_addresses_of_a_tree():
    graph = read_text(ADDRESSES)
    assert sorted(graph.hosts) == ["n07", "n08.site.org", "n09"]
    assert graph.parents["n08.site.org"] == ("root",)
    assert graph.parents["n09"] == ("s2", "s3")
    assert graph.parents["s1"] == ("root",)
    assert graph.host("n08") == "n08.site.org"


@pytest.mark.parametrize(
    ("address", "pattern", "kind", "place"),
    [
        ("b1.n7", "block.node", "block", None),
        ("r0:3.n7", "ring:position.node", "ring", (3,)),
        ("pod1:2:3:1.n7", "torus:x:y:z.node", "torus", (2, 3, 1)),
        ("n7", "node", "none", None),
    ],
)
def test_addresses_of_every_plugin(address, pattern, kind, place):
    graph = slurm_address.graph_of([slurm_address.parse(address, pattern)])
    assert (graph.kind, graph.hosts) == (kind, ("n7",))
    assert [grid.coordinates["n7"] for grid in graph.grids] == [place] * (place is not None)
