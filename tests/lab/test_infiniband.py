"""What the real tools say of a simulated fabric is read, and hosts started in any order get the best ring on it."""

import os
import random

import pytest

from ringmpi.topology.reading import read
from ringmpi.topology.ring_choice import choose_ring
from tests.lab.infiniband import fat_tree, simulated, torus, why_not

pytestmark = pytest.mark.timeout(90)
TOOLS = ["ibnetdiscover", "ibnetdiscover -p", "iblinkinfo", "iblinkinfo -l"]


@pytest.fixture(scope="module", autouse=True)
def tools():
    if reason := why_not():
        (pytest.fail if "CI" in os.environ else pytest.skip)(f"the simulated InfiniBand {reason}")


def told_by(fabric, *names):
    """Files of what tools print, by name of the tool."""
    paths = {name: fabric.folder / f"{name.replace(' ', '')}.txt" for name in names}
    for name, path in paths.items():
        path.write_text(fabric.say(*name.split()))
    return paths


def shuffled(hosts):
    return random.Random(1).sample(hosts, len(hosts))


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    with simulated(fat_tree(4, 3, 2), tmp_path_factory.mktemp("tree"), engine="ftree") as fabric:
        return told_by(fabric, *TOOLS) | {"order": fabric.folder / "opensm-ftree-ca-order.dump"}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_fat_tree_is_read_and_left_once_a_leaf(tree, tool):
    graph = read([tree[tool]])
    hosts = [f"n{n:02}" for n in range(12)]
    assert (sorted(graph.hosts), len(graph.switches), len(graph.links)) == (hosts, 5, 12 + 6)
    choice = choose_ring(tool, graph, shuffled(hosts))
    around = [shuffled(hosts)[rank] for rank in choice.order]
    leaf = {host: n // 4 for n, host in enumerate(hosts)}
    assert sum(leaf[a] != leaf[b] for a, b in zip(around, around[1:] + around[:1], strict=True)) == 3
    assert choice.proved_optimal
    assert choice.cost < choice.launch_cost


def test_the_order_of_opensm_is_as_good(tree):
    hosts = [f"n{n:02}" for n in range(12)]
    order = choose_ring("order", read([tree["order"]]), shuffled(hosts))
    again = [shuffled(hosts)[rank] for rank in order.order]
    assert choose_ring("tree", read([tree["ibnetdiscover"]]), again).moved is False


def seeds_of(shape, guids):
    """torus-2QoS.conf: a switch and the one above it along each dimension; of a short one there is no wrap to tell."""
    lines = [f"torus {' '.join(map(str, [*shape, *[1] * (3 - len(shape))]))}"]
    for axis in range(len(shape)):
        ends = ["sw-" + "-".join(str(int(other == axis) * step) for other in range(len(shape))) for step in (0, 1)]
        lines.append(f"{'xyz'[axis]}p_link {' '.join(guids[end].replace('S-', '0x') for end in ends)}")
    return "\n".join(lines)


@pytest.mark.parametrize("shape", [(4, 3, 2), (5, 3)])
def test_a_torus_is_walked_along_its_links(tmp_path, shape):
    """torus-2QoS.conf names one switch and its neighbours; every other place follows from the cables."""
    with simulated(torus(*shape), tmp_path, engine="dor") as fabric:
        path = told_by(fabric, "ibnetdiscover")["ibnetdiscover"]
    seeds = tmp_path / "torus-2QoS.conf"
    seeds.write_text(seeds_of(shape, {name: guid for guid, name in read([path]).labels.items()}))
    graph = read([path, seeds])
    assert graph.kind == "torus", graph.remarks
    hosts = shuffled(sorted(graph.hosts))
    choice = choose_ring("torus", graph, hosts)
    assert (choice.cost.congestion, choice.proved_optimal) == (1, True)
    assert choice.cost.hops == 3 * len(hosts)  # from a host to its switch, along one link, to the next host
