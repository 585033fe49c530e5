"""How long the kernels take, beside PyTorch's attention on the same GPU in the same minutes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

from ringmpi import Mask
from ringmpi.backends.cuda.attend import CudaBackend
from ringmpi.core.dtypes import bfloat16
from ringmpi.core.gradients import Gradients, Saved
from ringmpi.core.partial import Partial
from ringmpi.core.scoring import Scoring
from ringmpi.core.work import meet
from tests.device import peers
from tests.device.recorded import Recorder

TOKENS_IN_ALL, CHANNELS = 16384, 2048  # of a batch; of all heads together (Dao 2023, section 4.1)
ROUNDS, LEAST_SECONDS = 5, 0.01
OWN_KERNELS = {"ringmpi": False, "ringmpi, rounded weights": True}  # whether weights are rounded; in runs they are not
FLOPS = {"forward": 4, "backward": 10}  # for a pair and channel


@dataclass(frozen=True)
class Shape:
    """One row of the table."""

    tokens: int
    head_dim: int
    causal: bool
    backward: bool
    tokens_in_all: int = TOKENS_IN_ALL
    channels: int = CHANNELS

    @property
    def batch(self) -> int:
        """Sequences."""
        return max(self.tokens_in_all // self.tokens, 1)

    @property
    def heads(self) -> int:
        """Of queries, and of keys."""
        return max(self.channels // self.head_dim, 1)

    @property
    def which(self) -> str:
        """The pass."""
        return "backward" if self.backward else "forward"

    @property
    def flops(self) -> float:
        """Of the pairs that the mask allows."""
        pairs = self.tokens * (self.tokens + 1) // 2 if self.causal else self.tokens**2
        return float(FLOPS[self.which]) * pairs * self.head_dim * self.heads * self.batch

    def __str__(self) -> str:
        mask = "causal" if self.causal else "full"
        return f"{self.batch} x {self.heads} heads x {self.tokens} tokens x {self.head_dim}, {mask}, {self.which}"


@dataclass(frozen=True)
class Time:
    """Seconds of one contender for one shape; None: it cannot, and `note` says why."""

    shape: Shape
    contender: str
    seconds: float | None
    note: str = ""

    @property
    def teraflops(self) -> float | None:
        """Per second."""
        return self.shape.flops / self.seconds / 1e12 if self.seconds else None

    def __str__(self) -> str:
        if self.seconds is None:
            return f"{self.shape}: {self.contender}: {self.note}"
        return f"{self.shape}: {self.contender}: {1e3 * self.seconds:.3f} ms, {self.teraflops:.3g} TFLOP/s"


SHAPES = tuple(
    Shape(tokens << 10, head_dim, causal, backward)
    for head_dim in (64, 128)
    for causal in (False, True)
    for backward in (False, True)
    for tokens in (2, 4, 8, 16, 32)
)
FIRST_TOKENS = 8 << 10
FIRST_SHAPES = tuple(shape for shape in SHAPES if shape.tokens == FIRST_TOKENS)
OTHER_SHAPES = tuple(shape for shape in SHAPES if shape.tokens != FIRST_TOKENS)


def measure(device: Any, shapes: tuple[Shape, ...]) -> Iterator[Time]:
    """Medians over rounds, in each of which every contender has its turn.

    Parameters
    ----------
    device : Device
    shapes : tuple of Shape
    """
    for shape in shapes:
        yield from _measure_shape(device, shape)


def _measure_shape(device: Any, shape: Shape) -> list[Time]:
    contenders: dict[str, Callable[[], None]] = {}
    notes: dict[str, str] = {}
    for name, rounded in OWN_KERNELS.items():
        contenders[name] = own_call(device, shape, rounded=rounded)
    for name, prepare in peers.PEERS.items():
        try:
            contenders[name] = prepare(shape)
        except peers.CannotError as error:
            notes[name] = str(error)
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    counts = {name: _repeats(call, device) for name, call in contenders.items()}
    for _ in range(ROUNDS):
        for name, call in contenders.items():
            samples[name].append(_seconds(call, device, counts[name]))
    found = [Time(shape, name, statistics.median(seconds)) for name, seconds in samples.items()]
    return found + [Time(shape, name, None, note) for name, note in notes.items()]


def own_call(device: Any, shape: Shape, *, rounded: bool) -> Callable[[], None]:
    """What launches the kernels of one call again: kernels alone, without the host's part."""
    recorder = Recorder(device)
    backend = CudaBackend(recorder, rounded=rounded)
    memory, tokens = backend.memory, range(shape.tokens)
    slabs = shape.batch, shape.heads, shape.tokens
    wide = (*slabs, shape.head_dim)
    one = _numbers(prod(wide)).reshape(wide)
    q, k, v, grad_output = (memory.put(one, aligned=True) for _ in range(4))
    mask = Mask.causal() if shape.causal else Mask.full()
    work = meet(mask.resolve(shape.tokens, shape.tokens), tokens, tokens)
    scoring = Scoring(shape.head_dim**-0.5)
    zeros = np.zeros(slabs, np.float32)

    def nothing() -> Any:
        sums = memory.empty(wide, zeros.dtype)
        memory.clear(sums)
        return sums

    if shape.backward:
        saved = Saved(grad_output, memory.put(zeros + 20), memory.put(zeros))  # type: ignore[arg-type]
        into = Gradients(nothing(), nothing(), nothing(), slope=np.zeros(shape.heads, np.float32))
        backend.attend_backward(q, k, v, saved, work, scoring, into=into)  # type: ignore[arg-type]
    else:
        sums = Partial(memory.put(zeros - np.inf), memory.put(zeros), nothing())  # type: ignore[arg-type]
        backend.attend(q, k, v, work, scoring, into=sums)  # type: ignore[arg-type]
    return recorder.again


@cache
def _numbers(count: int) -> Any:
    """Drawn once: drawing takes longer than the kernels."""
    return np.random.default_rng(1).standard_normal(count, np.float32).astype(bfloat16)


def _seconds(call: Callable[[], None], device: Any, count: int) -> float:
    """Of one call, over `count` of them."""
    _finish(device)
    begun = time.perf_counter()
    for _ in range(count):
        call()
    _finish(device)
    return (time.perf_counter() - begun) / count


def _repeats(call: Callable[[], None], device: Any) -> int:
    """Calls that take long enough for a clock of the host, after one that warms up."""
    _seconds(call, device, 1)
    return max(int(LEAST_SECONDS / max(_seconds(call, device, 1), 1e-6)), 1)


def _finish(device: Any) -> None:
    device.wait()
    peers.finish()
