"""The figures of scaling-study.md: predicted, not measured.

    python -m docs.scaling

plans every case (some minutes), writes docs/benchmarks/scaling.json and the pictures, and then the tables.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from docs.collectives import binomial_seconds, scattered_seconds, two_level_seconds
from docs.fabrics import dragonfly, dragonfly_of_nodes, fat_tree, torus
from docs.markdown import table
from ringmpi.asking.question import sized_arrays
from ringmpi.core.masking import Mask
from ringmpi.core.problem import Problem, pose_problem
from ringmpi.core.sharding import Sharding
from ringmpi.planner.balance import PassTables, read_pass
from ringmpi.planner.machines import Rates
from ringmpi.planner.network import Network, RingHops
from ringmpi.planner.orders import forecast, ring_orders
from ringmpi.planner.roofline import critical_block_length
from ringmpi.plotting import new_figure, save_figure
from ringmpi.topology.graph import Graph

ROOT = Path(__file__).parent.parent
FILE = ROOT / "docs" / "benchmarks" / "scaling.json"
RATES = Rates(600e12, 50e9, "FlashAttention-3 on an H100; InfiniBand NDR, 400 Gbit/s a rank")
LATENCY = 1e-6
HEADS, HEAD_DIM = (32, 8), 128
RANKS = (64, 128, 256, 512, 1024, 2048, 4096)
LENGTHS = {"1M": 1 << 20, "16M": 1 << 24}
ORDERS = ("launch", "placed", "random")
FABRICS = {
    "torus 8x8x8": lambda: torus(8, 8, 8),
    "torus 16x16x16": lambda: torus(16, 16, 16),
    "fat tree, 2:1": lambda: fat_tree(8, 16, 32, up=16),
    "dragonfly": lambda: dragonfly(32, 16, 8, cables=2),
}
COMPARED = (64, 512, 4096)
ROOTS = 4  # of broadcasts, evenly spread over the ranks; the mean of them stands for all
A_NODE, PORTS = 8, 4  # ranks of a node, and cables of 25 GB/s to the fabric; 50 GB/s a rank inside
NODE_RATES = Rates(100e12, 50e9, "as a node of Frontier")  # the fastest cable is one inside a node


@cache
def fabric(name: str) -> Graph:
    """A fabric, made once."""
    return FABRICS[name]()


@cache
def counted(length: int, ranks: int, schedule: str = "ring") -> tuple[Problem, PassTables]:
    """The causal pass over so many positions, and its counts."""
    zigzag = Sharding.zigzag(length, ranks)
    arrays = sized_arrays(HEADS, length, HEAD_DIM, "bfloat16")
    problem = pose_problem(arrays, mask=Mask.causal(), queries=zigzag, keys=zigzag, schedule=schedule)
    return problem, read_pass(problem)


# ---- what is computed


def cases() -> Iterator[dict[str, Any]]:
    """Strong scaling of both lengths, and weak scaling: both grown with the ranks to their length on all of them."""
    for ranks in RANKS:
        lengths = {length for whole in LENGTHS.values() for length in (whole, whole * ranks // RANKS[-1])}
        for length in sorted(lengths):
            for name in FABRICS:
                if ranks <= len(fabric(name).hosts):
                    yield {"fabric": name, "ranks": ranks, "length": length, "orders": orders(name, ranks, length)}
            counted.cache_clear()


def orders(name: str, ranks: int, length: int) -> dict[str, dict[str, float]]:
    """A pass in every order of the ranks."""
    problem, tables = counted(length, ranks)
    network = Network(fabric(name), fabric(name).hosts[:ranks], RATES, LATENCY)
    found = {}
    for order, placed in ring_orders(network).items():
        case = forecast(problem, tables, network, placed)
        found[order] = {
            "seconds": case.times.total,
            "at_work": case.at_work,
            "congestion": case.cost.congestion,
            "hop": float(case.times.hop.max()),
            "attend": float(case.times.attend.max()),
        }
    return found


def broadcasts() -> Iterator[dict[str, Any]]:
    """A block from every rank to all others: around the placed ring, and by broadcasts among the same places."""
    for name in FABRICS:
        for ranks in (ranks for ranks in COMPARED if ranks <= len(fabric(name).hosts)):
            network = Network(fabric(name), fabric(name).hosts[:ranks], RATES, LATENCY)
            placed = ring_orders(network)["placed"]
            ring, hosts = RingHops(network, placed, (1,)), network.launch[list(placed)]
            for words, length in LENGTHS.items():
                nbytes = length // ranks * HEADS[1] * 2 * HEAD_DIM * 2
                hop = float(ring.seconds(1, 0, [np.full(ranks, nbytes)]).max())
                yield {
                    "fabric": name,
                    "ranks": ranks,
                    "length": words,
                    "block": nbytes,
                    "attend": flops(length) / ranks / RATES.flops,
                    "bound": (ranks - 1) * nbytes / RATES.bandwidth,
                    "ring": (ranks - 1) * hop,
                } | trees(network, hosts, nbytes)


def nodes() -> Iterator[dict[str, Any]]:
    """The same where 8 ranks share a node of 4 ports: also in two levels of rings."""
    machine = dragonfly_of_nodes(8, 16, 4, cables=8, a_node=A_NODE, ports=PORTS)
    for ranks in COMPARED:
        network = Network(machine, machine.hosts[:ranks], NODE_RATES, LATENCY)
        nbytes = LENGTHS["16M"] // ranks * HEADS[1] * 2 * HEAD_DIM * 2
        placed = ring_orders(network)["placed"]
        hosts = network.launch[list(placed)]
        hop = float(RingHops(network, placed, (1,)).seconds(1, 0, [np.full(ranks, nbytes)]).max())
        yield {
            "ranks": ranks,
            "bound": (ranks - 1) * nbytes / NODE_RATES.bandwidth,
            "ring": (ranks - 1) * hop,
            "two levels": two_level_seconds(network, hosts, A_NODE, nbytes),
        } | trees(network, hosts, nbytes)


def trees(network: Network, hosts: NDArray[np.int64], nbytes: int) -> dict[str, float]:
    """One broadcast from every rank, after each other, by both algorithms."""
    size = len(hosts)
    roots = range(0, size, size // ROOTS)
    return {
        "binomial": size * float(np.mean([binomial_seconds(network, hosts, root, nbytes) for root in roots])),
        "scattered": size * float(np.mean([scattered_seconds(network, hosts, root, nbytes) for root in roots])),
    }


def in_order() -> Iterator[dict[str, Any]]:
    """The ring and the broadcast schedule of ringmpi, both on the placed ring of the fat tree."""
    name = "fat tree, 2:1"
    for ranks in COMPARED[:2]:
        network = Network(fabric(name), fabric(name).hosts[:ranks], RATES, LATENCY)
        for schedule in ("ring", "broadcast"):
            problem, tables = counted(LENGTHS["1M"], ranks, schedule)
            case = forecast(problem, tables, network, ring_orders(network)["placed"])
            most, seconds = int(tables.bytes_sent.max()), case.times.total
            yield {"ranks": ranks, "schedule": schedule, "steps": tables.steps, "bytes": most, "seconds": seconds}


def flops(length: int) -> float:
    """Of all ranks, causal."""
    return Mask.causal().pairs(length, length) * HEADS[0] * 4.0 * HEAD_DIM


# ---- how it is shown


def results() -> dict[str, Any]:
    """What docs/benchmarks/scaling.json holds."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def hiding() -> str:
    """From how many queries per rank on a hop hides, and so up to how many ranks."""
    rows = []
    for congestion in (1, 2, 4, 8):
        rates = Rates(RATES.flops, RATES.bandwidth / congestion, "")
        least = critical_block_length(rates, query_heads=HEADS[0], key_heads=HEADS[1], density=0.5)
        rows.append((congestion, f"{least:,.0f}", *(f"{length / least:,.0f}" for length in LENGTHS.values())))
    head = ("blocks on the busiest cable", "queries per rank", *(f"ranks, {words} tokens" for words in LENGTHS))
    return table(head, rows, right=range(4))


def scaling(words: str, *, weak: bool) -> str:
    """Share of the ranks' time at work, in every order."""
    rows = []
    for ranks in RANKS:
        length = LENGTHS[words] * ranks // RANKS[-1] if weak else LENGTHS[words]
        found = {case["fabric"]: case["orders"] for case in _cases(ranks, length)}
        cells = [_cell(found.get(name)) for name in FABRICS]
        rows.append((f"{ranks:,}", f"{length // ranks:,}", *cells))
    head = ("ranks", "queries per rank", *FABRICS)
    return table(head, rows, right=range(len(head)))


def _cases(ranks: int, length: int) -> list[dict[str, Any]]:
    return [case for case in results()["cases"] if (case["ranks"], case["length"]) == (ranks, length)]


def _cell(found: dict[str, dict[str, float]] | None) -> str:
    return " / ".join(f"{100 * found[order]['at_work']:.0f}" for order in ORDERS) if found else "-"


def congestion() -> str:
    """Blocks on the busiest cable, in every order."""
    rows = []
    for ranks in RANKS:
        found = {case["fabric"]: case["orders"] for case in _cases(ranks, LENGTHS["1M"])}
        cells = [
            " / ".join(f"{found[name][order]['congestion']:g}" for order in ORDERS) if name in found else "-"
            for name in FABRICS
        ]
        rows.append((f"{ranks:,}", *cells))
    return table(("ranks", *FABRICS), rows, right=range(1 + len(FABRICS)))


def steps() -> str:
    """A ring step of the placed ring: work and hop."""
    rows = []
    for words, length in LENGTHS.items():
        for ranks in RANKS:
            placed = next(c for c in _cases(ranks, length) if c["fabric"] == "fat tree, 2:1")["orders"]["placed"]
            times = [f"{1e6 * placed[key]:,.1f}" for key in ("attend", "hop")]
            rows.append((words, f"{ranks:,}", f"{length // ranks:,}", *times, f"{placed['seconds']:.3g}"))
    head = ("tokens", "ranks", "queries per rank", "work, us", "hop, us", "pass, s")
    return table(head, rows, right=range(1, 6))


def ring_or_broadcast() -> str:
    """Seconds that keys and values travel in a pass, and the work beside them."""
    rows = []
    for case in results()["broadcasts"]:
        moved = [f"{case[key]:.3g}" for key in ("bound", "ring", "binomial", "scattered")]
        rows.append((case["fabric"], f"{case['ranks']:,}", case["length"], f"{case['attend']:.3g}", *moved))
    head = ("fabric", "ranks", "tokens", "work, s", "bound, s", "ring, s", "binomial, s", "scattered, s")
    return table(head, rows, right=(1, 3, 4, 5, 6, 7))


def node_ports() -> str:
    """Seconds that keys and values travel where 8 ranks share 4 ports."""
    keys = ("bound", "ring", "two levels", "binomial", "scattered")
    rows = [(f"{case['ranks']:,}", *(f"{case[key]:.3g}" for key in keys)) for case in results()["nodes"]]
    head = ("ranks", "bound, s", "one ring, s", "two levels of rings, s", "binomial, s", "scattered, s")
    return table(head, rows, right=range(6))


def schedules() -> str:
    """The ring and the broadcast schedule of ringmpi."""
    rows = [
        (f"{c['ranks']:,}", c["schedule"], f"{c['steps']:,}", f"{c['bytes'] / 1e9:.3f}", f"{c['seconds']:.3f}")
        for c in results()["in order"]
    ]
    return table(("ranks", "schedule", "ring steps", "GB that a rank sends", "pass, s"), rows, right=(0, 2, 3, 4))


def shown(name: str) -> str:
    """A table, or that there are no figures yet."""
    return MADE[name]() if FILE.exists() else "Not computed yet: `python -m docs.scaling`."


MADE: dict[str, Callable[[], str]] = {
    "hiding": hiding,
    "steps": steps,
    "congestion": congestion,
    "ring-or-broadcast": ring_or_broadcast,
    "nodes": node_ports,
    "schedules": schedules,
    "strong-m": lambda: scaling("1M", weak=False),
    "strong-sixteen-m": lambda: scaling("16M", weak=False),
    "weak-m": lambda: scaling("1M", weak=True),
    "weak-sixteen-m": lambda: scaling("16M", weak=True),
}
TABLES = {f"scaling-{name}": lambda name=name: shown(name) for name in MADE}


def draw() -> None:
    """The share of time at work against ranks, one picture for each kind of scaling."""
    colours = {"launch": "#7b8794", "placed": "#1f6feb", "random": "#d1495b"}
    for kind in ("strong", "weak"):
        figure = new_figure(9, 4.6)
        grid = figure.subplots(2, 4, sharex=True, sharey=True)
        for row, (words, whole) in zip(grid, LENGTHS.items(), strict=True):
            for axes, name in zip(row, FABRICS, strict=True):
                for order in ORDERS:
                    points = list(_points(name, order, whole, weak=kind == "weak"))
                    axes.plot(*zip(*points, strict=True), marker="o", markersize=3, color=colours[order], label=order)
                axes.set_xscale("log", base=2)
                axes.set_title(f"{name}, {words}", fontsize=8)
        grid[0, 0].legend(fontsize=7)
        figure.supxlabel("ranks", fontsize=9)
        figure.supylabel("share of time at work, predicted", fontsize=9)
        save_figure(figure, ROOT / "docs" / f"scaling-{kind}.svg")


def _points(name: str, order: str, whole: int, *, weak: bool) -> Iterator[tuple[int, float]]:
    for ranks in RANKS:
        for case in _cases(ranks, whole * ranks // RANKS[-1] if weak else whole):
            if case["fabric"] == name:
                yield ranks, case["orders"][order]["at_work"]


def main() -> None:
    """Compute, draw, write the tables."""
    found = {"in order": list(in_order()), "nodes": list(nodes()), "broadcasts": list(broadcasts())}
    found["cases"] = list(cases())
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    draw()
    subprocess.run([sys.executable, "-m", "docs.tables"], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
