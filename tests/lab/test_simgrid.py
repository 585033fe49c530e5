"""Predicted times against SimGrid, which replays the same pass with contention. Needs `smpirun` (libsimgrid-dev)."""

import os
import shutil

import pytest

from docs.fabrics import dragonfly, fat_tree, torus
from ringmpi import Mask
from ringmpi.planner.balance import read_pass
from ringmpi.planner.machines import Rates
from ringmpi.planner.network import Network
from ringmpi.planner.orders import ring_orders
from ringmpi.planner.replay import first_steps
from ringmpi.planner.simgrid import compare
from tests.planner.problems import problem
from tests.tolerances import PREDICTED_OVER_SIMULATED

RATES = Rates(600e12, 50e9, "")
SMALL = {
    "torus 8x6": lambda: torus(8, 6),
    "fat tree": lambda: fat_tree(4, 4, 4, up=2),
    "dragonfly": lambda: dragonfly(4, 4, 4, cables=2),
}
LARGE = {
    "torus 8x8x8": lambda: torus(8, 8, 8),
    "fat tree": lambda: fat_tree(4, 8, 16, up=8),
    "dragonfly": lambda: dragonfly(8, 8, 8, cables=4),
}


def held_against_simgrid(folder, graph, steps, **sizes):
    """In every order of the ranks."""
    if not shutil.which("smpirun"):
        (pytest.fail if "CI" in os.environ else pytest.skip)("smpirun is missing: apt-get install libsimgrid-dev")
    ranks = len(graph.hosts)
    asked = problem(ranks * sizes.pop("queries"), ranks, heads=(32, 8, 128), **sizes)
    network = Network(graph, graph.hosts, RATES, 1e-6)
    found = compare(folder, asked, first_steps(read_pass(asked), steps), network, ring_orders(network))
    ratios = {name: both.predicted / both.simulated for name, both in found.items()}
    assert ratios == pytest.approx(dict.fromkeys(found, 1), abs=PREDICTED_OVER_SIMULATED)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("machine", SMALL)
@pytest.mark.parametrize("schedule", ["ring", "bidirectional", "broadcast"])
@pytest.mark.parametrize("mask", [Mask.causal(), Mask.window(20_000, 0)], ids=["causal", "window"])
def test_a_pass_on_a_small_machine(tmp_path, machine, schedule, mask):
    queries = 1024 if schedule == "broadcast" else 4096
    held_against_simgrid(tmp_path, SMALL[machine](), 32, queries=queries, schedule=schedule, mask=mask)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("queries", [1024, 6144, 24576], ids=["hops", "both", "work"])
@pytest.mark.parametrize("machine", SMALL)
def test_where_hops_hide_and_where_not(tmp_path, machine, queries):
    held_against_simgrid(tmp_path, SMALL[machine](), 32, queries=queries, mask=Mask.causal())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("machine", LARGE)
def test_512_ranks(tmp_path, machine):
    held_against_simgrid(tmp_path, LARGE[machine](), 4, queries=4096, mask=Mask.causal(), sharding="zigzag")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("machine", [torus(4, 4), fat_tree(2, 4, 4, up=2)], ids=["torus", "fat tree"])
def test_everything_at_once(tmp_path, machine):
    """Owners send to all: every way shares its cables with many others."""
    held_against_simgrid(tmp_path, machine, 32, queries=4096, schedule="all-gather", sharding="zigzag")
