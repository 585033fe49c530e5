"""Kernels with one thing broken: `python -m tests.cuda.mutants [every]` says what sees each.

All mutants are in one watched build of each kernel (mutations.py). Each runs in a process of its own, on inputs with
tails, edges, rows without keys, carried sums, NaN behind the mask, in float16, float32 and float64 each, until
something sees it. Without `every`: those of CHOSEN, each of which must be seen.
"""

from __future__ import annotations

import collections
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from ringmpi import Mask
from ringmpi.backends.cuda.attend import CudaBackend
from ringmpi.backends.cuda.instances import WIDTHS
from tests.backends.dense import assert_attended, inputs
from tests.backends.meetings import meet_all
from tests.cuda.cases import PLAIN, Case, carried, gradients, saved_of, zeros
from tests.cuda.eager import EagerDevice
from tests.cuda.judging import backward_ratio, forward_ratio
from tests.cuda.libraries import EmulatorError, LibraryRunner, build
from tests.cuda.mutations import Mutant, chosen, write_mutants

HALF, SINGLE, DOUBLE = (np.dtype(x) for x in (np.float16, np.float32, np.float64))
LENGTHS = (140, 150)
FEW = {str(dtype): (Case(dtype, 32, lengths=LENGTHS),) for dtype in (HALF, SINGLE, DOUBLE)}


def _one_at_a_time(dtype: np.dtype) -> Case:
    """The narrowest heads whose gradients have one visiting tile in shared memory, and take a launch each."""
    cases = (Case(dtype, width, lengths=(70, 80)) for width in WIDTHS)
    return next(case for case in cases if case.instances()[1].size.stages == 1 and not case.instances()[1].size.pair)


ALL = {str(dtype): (*FEW[str(dtype)], _one_at_a_time(dtype)) for dtype in (HALF, SINGLE, DOUBLE)}
ALL["float16"] += (Case(HALF, 32, rounded=True, lengths=LENGTHS),)
NOT_MET = "not in these kernels"
SECONDS = 120  # of one mutant: more is taken for a loop without end
CHOSEN = (  # for the gates: where, what is broken, in which dtype
    ("forward.cuh: barrier()", "no barrier", "float16"),
    ("forward.cuh: barrier()", "no barrier", "float32"),
    ("forward.cuh: copies_wait", "no wait", "float64"),
    ("forward.cuh: copies_commit", "no commit", "float32"),
    ("forward.cuh: touched_", "forgets who has seen", "float64"),
    ("backward.cuh: barrier()", "no barrier", "float16"),
    ("backward.cuh: copies_wait", "no wait", "float32"),
    ("backward.cuh: int2* const seen", "always the first room", "float64"),
    ("products.cuh: load_matrices_transposed", "does not transpose", "float16"),
    ("products.cuh: of_tile[n / 4]", "not begun anew", "float16"),
    ("products.cuh: sum = APART", "not added", "float16"),
    ("tile.cuh: const bool valid", "bound + 1", "float64"),
    ("walk.cuh: if (local", "bound + 1", "float32"),
    ("problem.cuh: least_of(item.key_stop", "one less", "float16"),
    ("softmax.cuh: return larger(top", "own lane alone", "float32"),
    ("special.cuh: return barrier_or", "no vote", "float16"),
    ("carried.cuh: if (row < length", "bound + 1", "float64"),
)
# What nothing sees, and why that is right: (part of a line, rule): reason.
EXPLAINED: dict[tuple[str, str], str] = {
    (
        "word >= scoring.least",
        "bound + 1",
    ): "one random word of 2^32 is judged otherwise; tests/backends know the words",
    ("bool full() const", "bound - 1"): "a full tile is masked, too: slower, the same numbers",
    ("full_start = int((last.start", "one more"): "a full tile is masked, too: slower, the same numbers",
    (
        "const Span first = keys_of(item(), from)",
        "one more",
    ): "a tile more is visited or masked: slower, the same numbers",
    (
        "if (from < to && first.start",
        "bound + 1",
    ): "visits an item that none of the rows sees: slower, the same numbers",
    (
        "if (sizeof(T) == 8) return ((row",
        "no guard",
    ): "chunks change places in another way: banks alone are met otherwise",
    ("if (++number < stop) return", "bound + 1"): "visits a tile more, which no row sees: slower, the same numbers",
    ("(ahead < 0 ? -ahead : ahead)", "bound + 1"): "-0 is 0",
    ("(far < 0 ? -far : far)", "bound + 1"): "-0 is 0",
    ("if (held_raw<EXTRAS>(scoring)) return", "no guard"): "scores are scaled one by one, not in the power: the same",
    ("if (walk_.done()) return", "no guard"): "the host lists blocks that have work alone",
    ("if (!full && thread_index() < M) seen_", "bound + 1"): "one more lands in `special_`, written before it is read",
    ("walk.cuh: number = int(first", "one more"): "visits a tile more, which no row sees: slower, the same numbers",
}


def check(case: Case, backend: CudaBackend) -> None:
    """AssertionError or EmulatorError where the kernels are not what they should be."""
    partial, pairs = carried(backend, case, 2)
    meeting = case.meeting()
    expected = 2 * meeting.allowed.sum()
    assert pairs == expected, f"pairs: {pairs}, not {expected}"
    ratio = forward_ratio(case, partial)
    assert ratio <= 1, f"numbers: {ratio:.1f} times what is permitted"
    into, counted = gradients(backend, case, partial)
    assert counted == expected, f"pairs: {counted}, not {expected}, backward"
    ratio = backward_ratio(case, into)
    assert ratio <= 1, f"numbers: {ratio:.1f} times what is permitted, backward"
    if not case.rounded:
        check_not_finite(case, backend)
        check_strided(case, backend)


def check_not_finite(case: Case, backend: CudaBackend) -> None:
    """NaN behind the mask changes no bit; before it, it shows."""
    q, k, v, grad_output = case.inputs()
    meeting, above = case.meeting(), case.lengths[0] // 3
    plain, _ = backend.attend(q, k, v, meeting.work, case.scoring)
    saved = saved_of(plain, grad_output, case.dtype)
    sound, found_gradients = zeros(q, k, v, case.sums), zeros(q, k, v, case.sums)
    backend.attend_backward(q, k, v, saved, meeting.work, case.scoring, into=sound)
    unseen = ~meeting.allowed[:above].any(0)
    spoilt, first = v.copy(), int(unseen.argmax())
    spoilt[:, :, first, ::2] = np.nan
    found, _ = backend.attend(q, k, spoilt, meeting.work, case.scoring, finite=False)
    same = found.weighted_sum[..., 1::2] == plain.weighted_sum[..., 1::2]
    assert same.all(), "numbers: NaN in other columns"
    lost = ~np.isnan(found.weighted_sum[:, :, meeting.allowed[:, first], ::2])
    assert not lost.any(), "numbers: NaN of the first key is lost"
    for array in (k, v):
        array[:, :, unseen] = np.nan
    found, _ = backend.attend(q, k, v, meeting.work, case.scoring, finite=False)
    assert (found.weighted_sum[:, :, :above] == plain.weighted_sum[:, :, :above]).all(), "numbers: NaN behind the mask"
    meets = meeting.allowed[:, unseen].any(1)
    assert np.isnan(found.row_sum[:, :, meets]).all(), "numbers: NaN before the mask is lost"
    backend.attend_backward(q, k, v, saved, meeting.work, case.scoring, into=found_gradients, finite=False)
    same = found_gradients.query[:, :, :above] == sound.query[:, :, :above]
    assert same.all(), "numbers: NaN behind the mask, backward"


def check_strided(case: Case, backend: CudaBackend) -> None:
    """Rows and keys of a striped sharding: positions with gaps."""
    mask = Mask.window(40, 30)
    meeting = meet_all(mask, (200, 200), [range(1, 200, 2)], [range(0, 200, 3)])
    q, k, v = inputs(np.random.default_rng(3), meeting, (1, 1, 2, 24, 16), case.dtype)
    partial, pairs = backend.attend(q, k, v, meeting.work, PLAIN)
    assert pairs == 2 * meeting.allowed.sum(), "pairs: of a striped sharding"
    saved = saved_of(partial, v[:, [0, 0], :1].repeat(len(meeting.rows), 2), case.dtype)
    into = zeros(q, k, v, case.sums)
    counted = backend.attend_backward(q, k, v, saved, meeting.work, PLAIN, into=into)
    assert counted == pairs, "pairs: of a striped sharding, backward"
    assert_attended(partial, q, k, v, meeting, PLAIN)


def verdict(number: int, cases: tuple[Case, ...], kernels: Path) -> str:
    """What saw a mutant (0: none): "watch: ...", "pairs: ...", "numbers: ..."; "LIVES"; "not in these kernels"."""
    met = 0
    for case in cases:
        runner = LibraryRunner(watch=True, kernels=kernels, mutant=number)
        try:
            with np.errstate(all="ignore"):
                check(case, CudaBackend(EagerDevice(runner), rounded=case.rounded))
        except EmulatorError as error:
            return f"watch: {str(error)[-110:]}"
        except AssertionError as error:
            said = str(error).split("\n")[0]
            return said if said.startswith(("pairs", "numbers")) else f"numbers: {said}"
        met += runner.met
    return "LIVES" if met or not number else NOT_MET


def judged(jobs: list[tuple[Mutant, str]], kernels: Path, cases: dict[str, tuple[Case, ...]]) -> Iterator[str]:
    """The verdict of each mutant and dtype, two at a time, each in a process of its own."""
    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(lambda job: _apart(job[0].number, cases[job[1]], kernels), jobs)


def _apart(number: int, cases: tuple[Case, ...], kernels: Path) -> str:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(theirs, number, cases, kernels))
    process.start()
    theirs.close()
    try:
        return str(ours.recv()) if ours.poll(SECONDS) else "watch: does not end"
    except EOFError:
        return "watch: the process has crashed"
    finally:
        process.kill()
        process.join()


def _tell(to: Connection, number: int, cases: tuple[Case, ...], kernels: Path) -> None:
    to.send(verdict(number, cases, kernels))


def prepare(cases: list[Case], kernels: Path) -> None:
    """Build all kernels, and see that none of them is wrong without a mutant."""
    instances = {instance for case in cases for instance in case.instances()}
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda instance: build(instance, watch=True, kernels=kernels), instances))
    said = verdict(0, tuple(cases), kernels)
    if said != "LIVES":
        raise SystemExit(f"without a mutant: {said}")


def main() -> int:
    """Print a line a mutant and dtype, and a count; 0 where each is seen by something, or explained."""
    every, begun = "every" in sys.argv, time.monotonic()
    cases = ALL if every else FEW
    with tempfile.TemporaryDirectory() as folder:
        kernels = Path(folder)
        mutants = write_mutants(kernels)
        jobs = [(m, dtype) for m in mutants for dtype in ALL] if every else list(chosen(mutants, CHOSEN))
        prepare([case for of_dtype in cases.values() for case in of_dtype], kernels)
        lived, by = 0, collections.Counter[str]()
        for (mutant, dtype), said in zip(jobs, judged(jobs, kernels, cases), strict=True):
            reason = _reason(mutant) if said == "LIVES" else ""
            print(f"{dtype} {mutant}  ->  {f'lives, as it may: {reason}' if reason else said}", flush=True)  # noqa: T201
            by["explained" if reason else said.partition(":")[0]] += 1
            lived += said == "LIVES" and not reason or said == NOT_MET and not every
    counts = ", ".join(f"{name} {count}" for name, count in by.most_common())
    print(f"{len(jobs)} mutants in {time.monotonic() - begun:.0f} s: {counts}")  # noqa: T201
    return bool(lived)


def _reason(mutant: Mutant) -> str:
    for (text, what), reason in EXPLAINED.items():
        if text in f"{mutant.file}: {mutant.text}" and mutant.what == what:
            return reason
    return ""


if __name__ == "__main__":
    sys.exit(main())
