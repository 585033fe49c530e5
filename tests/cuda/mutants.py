"""Kernels with one thing broken: `python -m tests.cuda.mutants [every]` says which gate sees what.

A mutant is made mechanically: a barrier, a wait or a guard is left out, a transposing load does not transpose, a bound
is shifted by one. Each is emulated, its loads and stores watched, on inputs with tails, edges, rows without keys,
carried sums, NaN behind the mask. Without `every`: barriers, waits and loads alone.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ringmpi.backends.cuda.attend import CudaBackend
from ringmpi.core.gradients import Gradients
from ringmpi.core.partial import Partial, empty_partial
from ringmpi.core.work import KEY_START, KEY_STOP
from tests.backends.dense import assert_attended
from tests.backends.test_attend_backward import assert_of
from tests.cuda.cases import KEYS, PLAIN, Case, gradients, saved_of, zeros
from tests.cuda.emulated import KERNELS, EmulatedDevice, EmulatorError

FILES = (
    "forward.cuh",
    "backward.cuh",
    "tile.cuh",
    "products.cuh",
    "walk.cuh",
    "score.cuh",
    "special.cuh",
    "carried.cuh",
    "softmax.cuh",
)
SYNCHRONISATION = (
    (r"(?<![\w.])barrier\(\);", ""),
    (r"copies_wait<0>\(\);", ""),
    (r"load_matrices_transposed\((?=right)", "load_matrices("),
)
OTHERS = (
    (r"(?<=\w) < (?=[a-z][\w.]*[a-z_]\b)(?!.*;.*;)", " <= "),
    (r" <= (?=(column|key|number)\b)", " < "),
    (r"if \([^;{]*\) (return|continue);", ""),
    (r"copies_commit\(\);", ""),
    (r"\+ 1 < ", "< "),
    (r"exchange\((top|sum), [12]\)", r"\1"),
)
CASE = Case(np.dtype(np.float16), (64, 64), extras=True)
WIDE = Case(np.dtype(np.float16), (192, 192), extras=True)  # one visiting tile at a time, keys and values apart


@dataclass(frozen=True)
class Mutant:
    """One replacement in one file."""

    file: str
    line: int
    before: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before.strip()}"


def mutants(patterns: tuple[tuple[str, str], ...]) -> Iterator[Mutant]:
    """Each place where a pattern matches code (not a comment, not a template head)."""
    for file in FILES:
        text = (KERNELS / file).read_text(encoding="utf-8")
        for pattern, replacement in patterns:
            for match in re.finditer(pattern, text):
                line = text.count("\n", 0, match.start())
                whole = text.splitlines()[line]
                at = match.start() - text.rfind("\n", 0, match.start()) - 1
                if "//" in whole[:at] or whole.lstrip().startswith(("template", "for (", "#")):
                    continue
                yield Mutant(
                    file, line + 1, whole, text[: match.start()] + match.expand(replacement) + text[match.end() :]
                )


def verdict(mutant: Mutant) -> str:
    """What saw it: compiler, watch (races, bounds, who waits), numbers, counts; or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        kernels = Path(folder) / "kernels"
        shutil.copytree(KERNELS, kernels)
        (kernels / mutant.file).write_text(mutant.text, encoding="utf-8")
        try:
            backend = CudaBackend(EmulatedDevice(watch=True, kernels=kernels))
            check(backend)
            if mutant.file in ("backward.cuh", "walk.cuh"):
                check_gradients(backend, WIDE)
        except EmulatorError as error:
            return "watch: " + str(error)[-100:]
        except AssertionError as error:
            return "numbers: " + " ".join(str(error).split())[:80]
        except RuntimeError as error:
            return "compiler: " + str(error)[-60:].replace("\n", " ")
    return "LIVES"


def check(backend: CudaBackend) -> None:
    """AssertionError or EmulatorError where the kernels are not what they should be."""
    q, k, v, grad_output = CASE.inputs()
    meeting = CASE.meeting()
    partial, pairs = empty_partial(*q.shape[:3], v.shape[3], np.dtype(np.float32)), 0
    for start, stop in ((0, 70), (70, KEYS)):
        work = meeting.work.copy()
        work[:, KEY_START], work[:, KEY_STOP] = (
            work[:, KEY_START].clip(start, stop),
            work[:, KEY_STOP].clip(start, stop),
        )
        pairs += backend.attend(q, k, v, work, PLAIN, into=partial)[1]
    assert pairs == 2 * meeting.allowed.sum(), "pairs"
    assert_attended(_copy(partial), q, k, v, meeting, PLAIN)
    spoilt = [x.copy() for x in (k, v)]
    unseen = ~meeting.allowed[:64].any(0)
    for array in spoilt:
        array[:, :, unseen] = np.nan
    found, _ = backend.attend(q, *spoilt, meeting.work, PLAIN, finite=False)
    plain, _ = backend.attend(q, k, v, meeting.work, PLAIN)
    assert (found.weighted_sum[:, :, :64] == plain.weighted_sum[:, :, :64]).all(), "NaN behind the mask"
    assert np.isnan(found.weighted_sum[:, :, meeting.allowed[:, unseen].any(1)]).all(), "NaN before the mask"
    check_gradients(backend, CASE)


def check_gradients(backend: CudaBackend, case: Case) -> None:
    """The same of gradients."""
    q, k, v, grad_output = case.inputs()
    meeting = case.meeting()
    partial, pairs = backend.attend(q, k, v, meeting.work, case.scoring)
    into, counted = gradients(backend, case, meeting, _copy(partial))
    assert counted == pairs == 2 * meeting.allowed.sum(), "pairs backward"
    narrow = [x.astype(case.dtype) for x in (into.query, into.key, into.value)]
    assert_of(Gradients(*narrow, into.slope), grad_output, (q, k, v), meeting, case.scoring)
    unseen = ~meeting.allowed[:64].any(0)
    for array in (k, v):
        array[:, :, unseen] = np.nan
    found = zeros(q, k, v, np.dtype(np.float32))
    saved = saved_of(partial, grad_output, case.dtype)
    backend.attend_backward(q, k, v, saved, meeting.work, case.scoring, into=found, finite=False)
    assert (found.query[:, :, :64] == into.query[:, :, :64]).all(), "NaN behind the mask, backward"


def _copy(partial: Partial) -> Partial:
    return Partial(partial.row_max.copy(), partial.row_sum.copy(), partial.weighted_sum.copy())


def main() -> int:
    """Print a line a mutant; 0 where every barrier, wait and load is missed by something."""
    check(CudaBackend(EmulatedDevice(watch=True)))
    lived = 0
    for mutant in mutants(SYNCHRONISATION + (OTHERS if "every" in sys.argv else ())):
        said = verdict(mutant)
        lived += said == "LIVES"
        print(f"{mutant}  ->  {said}", flush=True)  # noqa: T201
    print(f"{lived} live")  # noqa: T201
    return bool(lived)


if __name__ == "__main__":
    sys.exit(main())
