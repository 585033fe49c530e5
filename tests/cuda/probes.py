"""Each primitive of kernels/primitives.cuh alone, in one warp, on numbers drawn once (kernels/probe.cuh)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
ARGUMENT = np.dtype([("given", np.uint64), ("found", np.uint64)])  # addresses; as in probe.cuh
PRIMITIVES = (
    "MULTIPLY_F16",
    "MULTIPLY_BF16",
    "MULTIPLY_F64",
    "LOAD",
    "LOAD_TRANSPOSED",
    "COPY",
    "PACK_F16",
    "PACK_BF16",
    "EXCHANGE",
    "ARITHMETIC",
)


@dataclass(frozen=True)
class Probe:
    """The kernel of one primitive; looks like an Instance to compilers (ringmpi/backends/cuda/instances.py)."""

    primitive: str

    source = "probe.cuh"
    shared_bytes = 2048

    @property
    def name(self) -> str:
        """The C++ expression that names it."""
        return f"ringmpi::probe<ringmpi::{self.primitive}>"

    @property
    def label(self) -> str:
        """The same, to read."""
        return f"probe-{self.primitive}"


def words(primitive: str) -> Words:
    """[32, 16]: what the lanes get; numbers where bits are read as such."""
    rng = np.random.default_rng(20231003)
    drawn = rng.integers(0, 1 << 32, (32, 16), np.uint32)
    if primitive == "MULTIPLY_F64":
        drawn[:, :8] = rng.standard_normal((32, 4)).view(np.uint32)
    if primitive in ("PACK_F16", "PACK_BF16", "ARITHMETIC"):
        drawn[:, :3] = rng.standard_normal((32, 3), np.float32).view(np.uint32)
    if primitive == "PACK_F16":
        drawn[:, 2] &= 0x7BFF  # a number, as the bits of NaN may differ
    if primitive in ("MULTIPLY_F16", "MULTIPLY_BF16"):
        drawn[:, 6:10] = rng.standard_normal((32, 4), np.float32).view(np.uint32)
        narrow = rng.standard_normal((32, 12), np.float32)
        upper = narrow.view(np.uint32) >> 16  # bfloat16
        halves = narrow.astype(np.float16).view(np.uint16).astype(np.uint32) if primitive == "MULTIPLY_F16" else upper
        drawn[:, :6] = halves[:, ::2] | halves[:, 1::2] << 16
    return drawn


def run(primitive: str, device: Any) -> Words:
    """[32, 16]: what the lanes give on a device (ringmpi/backends/cuda/device.py)."""
    given = words(primitive)
    found = np.zeros_like(given)
    rooms = [device.allocate(given.nbytes) for _ in range(2)]
    device.upload(rooms[0].ptr, given)
    device.launch(Probe(primitive), 1, 32, np.array(tuple(room.ptr for room in rooms), ARGUMENT))
    device.wait()
    device.download(found, rooms[1].ptr).wait()
    return found


def assert_same(primitive: str, found: Words, expected: Words) -> None:
    """As near as the manual promises: products and approximations to some units in the last place, the rest in bits."""
    if primitive.startswith("MULTIPLY"):
        kind = np.float64 if primitive == "MULTIPLY_F64" else np.float32
        np.testing.assert_allclose(found.view(kind), expected.view(kind), rtol=1e-5, atol=1e-6)
    elif primitive == "ARITHMETIC":
        np.testing.assert_allclose(found[:, :3].view("f4"), expected[:, :3].view("f4"), rtol=1e-6)
        np.testing.assert_array_equal(found[:, 3:], expected[:, 3:])
    else:
        np.testing.assert_array_equal(found, expected)
