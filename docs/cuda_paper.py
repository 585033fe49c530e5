"""The tables of cuda-kernels.md: what the compiler says of each kernel, and what arithmetic on paper permits it.

Nothing here is measured on a GPU. Cycles are those of one tile and one of the four schedulers of a multiprocessor,
where all four are busy: of tensor cores, of the port of shared memory (128 bytes a cycle for all four), and of all the
rest (powers, multiply-adds, comparisons).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from docs.markdown import table
from ringmpi.backends.cuda.addition import EVERY_ADDITION
from ringmpi.backends.cuda.instances import Instance, every_instance

INSTANCES = Path(__file__).parent / "benchmarks/cuda-instances.json"
SCHEDULERS = 4


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU, from its maker's data sheet.

    product_cycles: of one instruction on one tensor core, or one multiply-add of a warp for float32, by bytes of an
    element. simple_cycles: of a multiply-add or comparison of float32 of a warp.
    """

    name: str
    multiprocessors: int
    gigahertz: float
    product_cycles: dict[int, float]
    simple_cycles: int


# 16 bit: 2,048 multiply-adds an instruction (m16n8k16); float64: 256 (m8n8k4).
# A100: 312 TFLOP/s of 16 bit, 19.5 of float64 and float32. H100 SXM: 989, 67 and 67; but the instruction of these
# kernels reaches 62 % of 989 (Luo et al. 2024, "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture",
# arXiv 2402.13499). The H200 has the same multiprocessors as the H100.
GPUS = (
    Gpu("A100", 108, 1.41, {2: 8, 4: 2, 8: 16}, 2),
    Gpu("H100", 132, 1.83, {2: 4 / 0.62, 4: 1, 8: 8}, 1),
)
POWER_CYCLES = 8  # of a warp, in the special function unit
DOUBLE_POWER_CYCLES = {"A100": 80, "H100": 40}  # about 20 multiply-adds of float64
WIDEST_APART = 192  # columns, of the heads whose tiles are summed up apart (kernels/products.cuh)
LOAD_CYCLES = {2: 4, 4: 4, 8: 2}  # of the port: four matrices, a 16-byte load a lane, an 8-byte load a lane


@dataclass(frozen=True)
class Tile:
    """What one warp does with one tile.

    products: instructions; loads: instructions that bring factors from shared memory; scores: of a thread;
    additions: of a thread, of what a tile gives, to the sums; useful_flops: those that the formula needs, of the block.
    """

    products: float
    loads: float
    scores: int
    additions: float
    useful_flops: float

    def __add__(self, other: Tile) -> Tile:
        return Tile(
            self.products + other.products,
            self.loads + other.loads,
            self.scores + other.scores,
            self.additions + other.additions,
            self.useful_flops + other.useful_flops,
        )


def forward_tile(of: Instance) -> Tile:
    """One tile of the forward pass."""
    return _tile(of, inner=1, outer=1, useful=4)


def backward_tile(of: Instance) -> Tile:
    """One tile in each launch of the backward pass."""
    launches = {"query": (2, 1), "keys": (2, 2), "key": (2, 1), "value": (1, 1)}  # products with rows, with weights
    parts = [_tile(of, *launches[launch], useful=10 / len(of.launches)) for launch in of.launches]
    return sum(parts[1:], start=parts[0])


def _tile(of: Instance, inner: int, outer: int, useful: float) -> Tile:
    rows, keys, width, size = of.size.rows, of.tile, of.width, of.dtype.itemsize
    if size == 2:
        each = rows / 2 * keys / 8 * width / 16
        loads = inner * width / 16 * (rows / 2 + keys / 16) + outer * keys / 16 * width / 16
        products = each * (inner + outer * of.terms)
    else:
        depth = 4 if size == 8 else 1  # columns that one product goes through
        each = rows * keys / 8 * width / depth * (1 if size == 8 else 2)
        steps = width / 4
        inner_loads = steps * (rows + keys / 8 * (1 if size == 8 else 2))
        outer_loads = keys * width / (32 if size == 8 else 16)  # float32: 8-byte loads of which half are needed
        loads, products = inner * inner_loads + outer * outer_loads, each * (inner + outer)
    additions = outer * rows * width / 4 if of.terms > 1 and width <= WIDEST_APART else 0
    return Tile(products, loads, rows * keys // 4, additions, useful * of.block_rows * keys * width)


def cycles(of: Instance, tile: Tile, gpu: Gpu, launches: int) -> tuple[float, float, float]:
    """Of products, of the port of shared memory, of the rest."""
    size = of.dtype.itemsize
    brought = 2 * of.tile * of.width * size / 128 * launches  # tiles on their way into shared memory
    port = tile.loads * LOAD_CYCLES[size] * SCHEDULERS + brought
    power = DOUBLE_POWER_CYCLES[gpu.name] if size == 8 else POWER_CYCLES + 4 * gpu.simple_cycles
    return tile.products * gpu.product_cycles[size], port, tile.scores * power + tile.additions * gpu.simple_cycles


def permitted(of: Instance, tile: Tile, gpu: Gpu, launches: int) -> tuple[float, float, str]:
    """TFLOP/s if all parts overlap, if none does, and which part is the bound."""
    parts = dict(zip(("products", "shared memory", "powers"), cycles(of, tile, gpu, launches), strict=True))
    best = max(parts, key=lambda name: parts[name])
    speed = tile.useful_flops * gpu.multiprocessors * gpu.gigahertz * 1e9 / 1e12
    return speed / parts[best], speed / (max(parts["products"], parts["shared memory"]) + parts["powers"]), best


def paper() -> str:
    """What paper permits: each kernel of 16 bit with rounded weights, bfloat16 without, float32 and float64."""
    head = ["kernel", "rows, tile", "flops per byte of tiles"]
    head += [f"{gpu.name}: bound by, TFLOP/s" for gpu in GPUS]
    return table(head, _paper_rows(), right=(2,))


def _paper_rows() -> Iterator[list[str]]:
    for of in every_instance():
        if of.dtype == np.float16 or of.width not in (64, 128, 256):
            continue  # as bfloat16, but for two terms in the place of three
        tile = forward_tile(of) if of.part == "output" else backward_tile(of)
        launches = len(of.launches)
        brought = 2 * of.tile * of.width * of.dtype.itemsize * launches
        row = [of.label, f"{of.block_rows}, {of.tile}", f"{tile.useful_flops / brought:.0f}"]
        for gpu in GPUS:
            most, least, bound = permitted(of, tile, gpu, launches)
            row.append(f"{bound}, {least:.0f} to {most:.0f}")
        yield row


def instances() -> str:
    """docs/benchmarks/cuda-instances.json: a line each kernel, sm_80 and sm_90 together."""
    found = json.loads(INSTANCES.read_text(encoding="utf-8"))
    by_label: dict[str, dict[str, dict[str, int]]] = {}
    for line in found["kernels"]:
        by_label.setdefault(line["label"], {})[line["architecture"]] = line
    rows = []
    for of in (*every_instance(), *EVERY_ADDITION):
        lines = by_label[of.label]
        registers = ", ".join(str(lines[kind]["registers"]) for kind in ("sm_80", "sm_90"))
        spills = max(line["spills"] for line in lines.values())
        one = lines["sm_80"]
        rows.append([of.label, one["rows"], one["tile"] or "-", f"{one['shared']:,}", registers, spills, one["blocks"]])
    head = ["kernel", "rows", "tile", "shared bytes", "registers, sm_80 and sm_90", "spills", "blocks"]
    return f"Compiled by NVRTC {found['nvrtc']}.\n\n" + table(head, rows, right=range(1, len(head)))


TABLES = {"cuda-paper": paper, "cuda-instances": instances}
