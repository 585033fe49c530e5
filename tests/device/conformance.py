"""Whether a GPU does what its emulation does, and what the plain formula says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi import Mask, attention, attention_backward
from ringmpi.backends.cuda.addition import EVERY_ADDITION, THREADS
from ringmpi.backends.cuda.attend import CudaBackend
from ringmpi.backends.cuda.instances import every_instance
from ringmpi.backends.cuda.kernel_cache import cached_kernel
from ringmpi.backends.cuda.memory import DeviceMemory
from ringmpi.core.dtypes import bfloat16
from ringmpi.core.reference import dense_attention
from ringmpi.core.scoring import Scoring
from ringmpi.core.tolerance import finite_scale
from tests.cuda.cases import EVERY_CASE, PLAIN_CASES, Case, LongCase, carried, gradients, long_cases
from tests.cuda.eager import EagerDevice
from tests.cuda.judging import backward_ratio, forward_ratio
from tests.cuda.libraries import LibraryRunner
from tests.cuda.probes import PRIMITIVES, Probe, assert_same, run
from tests.device.outcome import Outcome, failed
from tests.tolerances import assert_gradients, assert_within

STEPS, RANKS, LENGTH = 3, 3, 300
# Each dtype, and what is timed: of 64 columns, and of 128 in bfloat16.
FIRST_CASES = tuple(case for case in EVERY_CASE if case.width == 64 or (case.width, case.dtype) == (128, bfloat16))
OTHER_CASES = tuple(case for case in EVERY_CASE + PLAIN_CASES if case not in FIRST_CASES)
LONG_CASES = long_cases(64, 8192)  # tensor cores cut sums off: by how much, only hardware says
_OF_FIRST = {instance for case in FIRST_CASES for instance in case.instances()}
FIRST_KERNELS = (*_OF_FIRST, *EVERY_ADDITION, *map(Probe, PRIMITIVES))
OTHER_KERNELS = tuple(instance for instance in every_instance() if instance not in _OF_FIRST)


def compilation_outcomes(
    device: Any, kernels: tuple[Any, ...], *, seconds: Callable[[], float] = lambda: 600.0
) -> Iterator[Outcome]:
    """Kernels, by a process for each core: one after the other they would take half of the time that there is.

    What has not been compiled after `seconds()` is left to who needs it.
    """
    name, done = f"compilation of {len(kernels)} kernels for {device.architecture}", 0
    pool = ProcessPoolExecutor(mp_context=get_context("spawn"))
    try:
        jobs = {pool.submit(cached_kernel, kernel, device.architecture): kernel for kernel in kernels}
        for job in as_completed(jobs, max(seconds(), 0)):
            if (error := job.exception()) is None:
                done += 1
            else:
                yield failed(f"compilation of {jobs[job].label}", error)
        yield Outcome(name, done == len(kernels))
    except TimeoutError:
        yield Outcome(name, None, f"time is up after {done}")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def primitive_outcomes(
    device: Any, seen: Path, out: Path, primitives: tuple[str, ...] = PRIMITIVES
) -> Iterator[Outcome]:
    """Each primitive on the device, against what a device of its kind gave before, and against its emulation.

    Parameters
    ----------
    device : Device
    seen : Path
        A folder with a file for each kind of GPU.
    out : Path
        Where that file is written if it is not there.
    """
    found = {primitive: run(primitive, device) for primitive in primitives}
    name = f"primitives-{device.architecture}.npz"
    yield seen_before(found, seen / name, out / name)
    for primitive, words in found.items():
        try:
            expected = run(primitive, EagerDevice(LibraryRunner()))
        except (OSError, RuntimeError) as error:  # without g++
            yield Outcome(f"primitive {primitive}", None, f"its emulation cannot be built: {str(error)[:200]}")
            continue
        try:
            assert_same(primitive, words, expected)
        except AssertionError as error:
            yield failed(f"primitive {primitive}", error)
        else:
            yield Outcome(f"primitive {primitive}", True)


def seen_before(found: dict[str, NDArray[np.uint32]], path: Path, new: Path) -> Outcome:
    """What a device gives now is what one of its kind gave before, bit by bit; the first one is written to `new`."""
    if not path.exists():
        np.savez_compressed(new, **found)  # type: ignore[arg-type]
        said = f"these are the first; copy {new} to {path.parent.name}/ and commit it"
        return Outcome("primitives as seen before", None, said)
    with np.load(path) as before:
        other = [name for name, words in found.items() if name not in before or (before[name] != words).any()]
    return Outcome("primitives as seen before", not other, f"other bits: {', '.join(other)}" if other else "")


def kernel_outcomes(device: Any, cases: tuple[Case, ...] = EVERY_CASE + PLAIN_CASES) -> Iterator[Outcome]:
    """The cases of gate B: numbers and counts of every kernel, forward and backward, sums carried over calls.

    Raises
    ------
    BackendError
        After a failure that has broken the device for good: nothing that follows would say anything.
    """
    for case in cases:
        try:
            yield _kernel_outcome(device, case)
        except Exception as error:
            yield failed(f"kernel {case}", error)
            device.wait()


def _kernel_outcome(device: Any, case: Case) -> Outcome:
    backend = CudaBackend(device, rounded=case.rounded)
    expected = 2 * case.meeting().allowed.sum()
    partial, pairs = carried(backend, case, STEPS)
    into, counted = gradients(backend, case, partial)
    ratios = forward_ratio(case, partial), backward_ratio(case, into)
    passed = bool(pairs == counted == expected and max(ratios) <= 1)
    said = f"{pairs} and {counted} pairs of {expected}, error {ratios[0]:.2f} and {ratios[1]:.2f} of what is permitted"
    return Outcome(f"kernel {case}", passed, said)


def long_outcomes(device: Any, cases: tuple[LongCase, ...] = LONG_CASES) -> Iterator[Outcome]:
    """Whether errors stay within the tolerances where many keys, or rows, are added up."""
    backend = CudaBackend(device)
    for case in cases:
        partial, _ = carried(backend, case, 1)
        if case.backward:
            ratio = backward_ratio(case, gradients(backend, case, partial)[0])
        else:
            ratio = forward_ratio(case, partial)
        yield Outcome(f"long sums {case}", ratio <= 1, f"error {ratio:.2f} of what is permitted")


def addition_outcomes(device: Any) -> Iterator[Outcome]:
    """Sums of gradients that have arrived: the bits of NumPy's."""
    memory = DeviceMemory(device)
    for kernel in EVERY_ADDITION:
        a, b = np.random.default_rng(1).standard_normal((2, 1, 1, 1, 3 * THREADS + 5)).astype(kernel.dtype)
        there = memory.put(a)
        memory.add(there, memory.put(b))
        yield Outcome(f"kernel {kernel.label}", memory.get(there).tobytes() == (a + b).tobytes())


def ring_outcomes() -> Iterator[Outcome]:
    """Whole passes of a simulated ring by the public functions: slots, copies by the host, sums that travel."""
    for dtype in (np.float16, np.float32):
        rng = np.random.default_rng(2)
        given = rng.standard_normal((4, 2, LENGTH, 40)).astype(dtype)
        name = f"ring of {RANKS}, {np.dtype(dtype)}"
        try:
            _assert_ring(*given)
        except AssertionError as error:
            yield failed(name, error)
        else:
            yield Outcome(name, True)


def _assert_ring(q: Any, k: Any, v: Any, grad_output: Any) -> None:
    mask, scoring = Mask.causal(), Scoring(q.shape[-1] ** -0.5)
    options: dict[str, Any] = {"mask": mask, "ranks": RANKS, "backend": "cuda"}
    out = attention(q, k, v, **options)
    assert out.pairs == len(q) * mask.pairs(LENGTH, LENGTH), f"{out.pairs} pairs"
    found = attention_backward(grad_output, q, k, v, out, **options)
    arrays = [array[None] for array in (q, k, v)]
    allowed = mask.allowed(LENGTH, LENGTH)
    naive, reference = (dense_attention(*arrays, allowed, scoring, dtype=wide)[0] for wide in (np.float32, np.float64))
    assert_within(out.output[None], naive, reference, finite_scale(v))
    gradients_of = [array[None] for array in (found.query, found.key, found.value)]
    assert_gradients((*gradients_of, None, None), grad_output[None], *arrays, allowed, scoring)
