"""Places: coordinates from a map, from names, from our TOML, and of InfiniBand switches from their cables."""

import itertools
import random

import pytest

from ringmpi.topology.building import box_places
from ringmpi.topology.graph import Graph, Grid, Link, bundled
from ringmpi.topology.readers import xnames
from ringmpi.topology.torus_layout import laid_out
from tests.topology.texts import COORDINATES, TOML, XNAMES, read_text


def test_a_map_of_coordinates():
    (grid,) = read_text(COORDINATES).grids
    assert (grid.shape, grid.wrap) == ((4, 3, 2), (True, True, False))
    assert grid.coordinates == {"n1": (0, 0, 0), "n2": (3, 0, 0), "n3": (0, 2, 0), "n4": (0, 0, 1)}
    assert read_text(COORDINATES).neighbours["n1"].keys() == {"n2", "n3", "n4"}


def test_without_a_shape_nothing_wraps():
    graph = read_text("n1 0 0\nn2 2 1\n")
    assert (graph.grids[0].shape, graph.grids[0].wrap) == ((3, 2), (False, False))
    assert graph.remarks == ("file: no first line such as torus 3x2: taken for a mesh",)


def test_names_of_cabinets():
    graph = read_text(XNAMES)
    chain = ["nid000001"]
    while chain[-1] in graph.parents:
        chain += graph.parents[chain[-1]]
    assert chain == ["nid000001", "x1000c0s0b0", "x1000c0s0", "x1000c0", "x1000", "all cabinets"]
    assert graph.distances("nid000001")["nid000002"] == 4
    assert read_text("x1000c0s[0-1]b0n[0-1]\n").hosts == tuple(f"x1000c0s{s}b0n{n}" for s in "01" for n in "01")


def test_two_cabinets_of_an_xc_are_a_group():
    graph = xnames.from_names(["c0-0c0s0n0", "c1-0c2s3n1", "c2-0c0s0n0"])
    assert graph.parents["c0-0"] == graph.parents["c1-0"] == ("group 0-0",)
    assert graph.parents["c2-0"] == ("group 1-0",)
    assert xnames.from_names(["c0-0c0s0n0", "login1"]) is None
    assert xnames.from_names([]) is None


def test_our_own_description():
    graph = read_text(TOML)
    assert (graph.unit, graph.parents["n6"], graph.parents["leaf2"]) == ("Gbit/s", ("leaf2",), ("top",))
    assert graph.neighbours["n1"]["leaf1"].capacity == 400
    ring = "".join(f'[[link]]\nbetween = ["a{n}", "a{(n + 1) % 4}"]\ncables = 2\n' for n in range(4))
    graph = read_text(ring)
    assert (graph.kind, graph.hosts, graph.links[0]) == ("fabric", ("a0", "a1", "a2", "a3"), Link(("a0", "a1"), 2.0, 2))
    graph = read_text('[[grid]]\nname = "g"\nshape = [3, 2]\nwrap = [true, false]\nhosts = "n[1-6]"\n')
    assert graph.neighbours["n1"].keys() == {"n2", "n3", "n4"}
    assert graph.grids[0].coordinates["n4"] == (0, 1)


def test_our_own_links_make_a_fat_tree():
    links = "".join(f'[[link]]\nbetween = ["L{a}", "S{b}"]\n' for a in "12" for b in "12")
    switches = "".join(f'[[switch]]\nname = "L{a}"\nhosts = "n{a}[1-2]"\n' for a in "12")
    graph = read_text(switches + '[[switch]]\nname = "S1"\n[[switch]]\nname = "S2"\n' + links)
    assert (graph.kind, graph.parents["L1"], graph.parents["n12"]) == ("tree", ("S1", "S2"), ("L1",))


def shuffled_torus(shape, wrap, seed):
    """A graph of switches with names that tell nothing, and the name of each place."""
    draw = random.Random(seed)
    places = list(box_places(shape))
    names = dict(zip(places, draw.sample([f"S-{n:04x}" for n in range(len(places))], len(places)), strict=True))
    links = []
    for place, (axis, size) in itertools.product(places, enumerate(shape)):
        up = place[axis] + 1
        if size > 1 and (up < size or wrap[axis]):
            links.append(Link((names[place], names[(*place[:axis], up % size, *place[axis + 1 :])])))
    return Graph("fabric", switches=tuple(sorted(names.values())), links=bundled(links)), names


SHAPES = [(4, 2, 2), (2, 2, 2), (3, 3, 3), (4, 4, 1), (4, 4, 4), (5, 4, 2), (6, 4, 4), (7, 1, 1), (5, 6, 7)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("wrap", [(True, True, True), (False, True, True), (False, False, False)], ids=str)
def test_switches_of_a_torus_find_their_places(shape, wrap):
    graph, names = shuffled_torus(shape, wrap, seed=1)
    steps = [tuple(int(a == axis) for a in range(3)) for axis in range(3) if shape[axis] > 1]
    seeds = {names[place]: place for place in [(0, 0, 0), *steps]}
    found = laid_out(graph, Grid("torus", shape, wrap, seeds))
    assert found is not None
    assert found | seeds == found
    assert sorted(found.values()) == sorted(box_places(shape))
    at = {place: vertex for vertex, place in found.items()}
    for vertex, place in found.items():  # neighbours are one step away: any such layout is the torus
        near = {at[other] for other in at if distance(place, other, shape, wrap) == 1}
        assert near == graph.neighbours[vertex].keys()


def distance(a, b, shape, wrap):
    gaps = [abs(x - y) for x, y in zip(a, b, strict=True)]
    return sum(min(gap, size - gap) if w else gap for gap, size, w in zip(gaps, shape, wrap, strict=True))


@pytest.mark.parametrize("change", ["a link less", "a switch less", "another shape", "a wrong seed"])
def test_what_is_no_torus_gets_no_places(change):
    graph, names = shuffled_torus((5, 3, 2), (True, True, True), seed=2)
    shape = (5, 3, 2)
    seeds = {names[place]: place for place in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]}
    if change == "a link less":
        graph = Graph("fabric", switches=graph.switches, links=graph.links[1:])
    elif change == "a switch less":
        graph = Graph("fabric", switches=tuple(s for s in graph.switches if s != names[4, 2, 1]), links=())
    elif change == "another shape":
        shape = (3, 5, 2)
    else:
        seeds[names[2, 0, 0]] = seeds.pop(names[1, 0, 0])
    assert laid_out(graph, Grid("torus", shape, (True, True, True), seeds)) is None
