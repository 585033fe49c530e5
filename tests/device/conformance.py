"""Whether a GPU does what its emulation does, and what the plain formula says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.backends.cuda.attend import CudaBackend
from tests.cuda.cases import EVERY_CASE, PLAIN_CASES, Case, carried, gradients
from tests.cuda.eager import EagerDevice
from tests.cuda.judging import backward_ratio, forward_ratio
from tests.cuda.libraries import LibraryRunner
from tests.cuda.probes import PRIMITIVES, assert_same, run

STEPS = 3


@dataclass(frozen=True)
class Outcome:
    """Of one check.

    Attributes
    ----------
    name : str
    passed : bool or None
        None: it could not be run; `detail` says why.
    detail : str
    """

    name: str
    passed: bool | None
    detail: str

    def __str__(self) -> str:
        word = {True: "passed", False: "FAILED", None: "not run"}[self.passed]
        return f"{self.name}: {word}{f', {self.detail}' if self.detail else ''}"


def primitive_outcomes(device: Any, seen: Path, primitives: tuple[str, ...] = PRIMITIVES) -> Iterator[Outcome]:
    """Each primitive on the device, against its emulation and against what a device of its kind gave before.

    Parameters
    ----------
    device : Device
    seen : Path
        A folder with a file for each kind of GPU; what is missing there is written.
    """
    found = {primitive: run(primitive, device) for primitive in primitives}
    for primitive, words in found.items():
        try:
            assert_same(primitive, words, run(primitive, EagerDevice(LibraryRunner())))
        except AssertionError as error:
            yield Outcome(f"primitive {primitive}", False, " ".join(str(error).split())[:200])
        else:
            yield Outcome(f"primitive {primitive}", True, "")
    yield seen_before(found, seen / f"primitives-{device.architecture}.npz")


def seen_before(found: dict[str, NDArray[np.uint32]], path: Path) -> Outcome:
    """What a device gives now is what one of its kind gave before, bit by bit; the first one is remembered."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **found)  # type: ignore[arg-type]
        return Outcome("primitives as seen before", None, f"these are the first; written to {path.name}, commit it")
    with np.load(path) as before:
        other = [name for name, words in found.items() if name not in before or (before[name] != words).any()]
    return Outcome("primitives as seen before", not other, f"other bits: {', '.join(other)}" if other else "")


def kernel_outcomes(device: Any, cases: tuple[Case, ...] = EVERY_CASE + PLAIN_CASES) -> Iterator[Outcome]:
    """The cases of gate B: numbers and counts of every kernel, forward and backward, sums carried over calls."""
    for case in cases:
        backend = CudaBackend(device, rounded=case.rounded)
        expected = 2 * case.meeting().allowed.sum()
        partial, pairs = carried(backend, case, STEPS)
        into, counted = gradients(backend, case, partial)
        ratios = forward_ratio(case, partial), backward_ratio(case, into)
        passed = bool(pairs == counted == expected and max(ratios) <= 1)
        said = (
            f"{pairs} and {counted} pairs of {expected}, error {ratios[0]:.2f} and {ratios[1]:.2f} of what is permitted"
        )
        yield Outcome(f"kernel {case}", passed, said)
