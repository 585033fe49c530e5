"""A contender in a process of its own: its threads, its libraries and its faults do not touch the others."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ringmpi.bench.machine import unpinned
from ringmpi.bench.questions import Case
from ringmpi.errors import RingMpiError

PATIENCE_SECONDS = 900.0
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class NoAnswerError(RingMpiError):
    """A contender has no answer.

    kind  "unsupported": its interface has no word for the question; "refused": it raised an error of its own;
          "absent": it is not installed, or does not start; "error": it crashed or hung
    """

    def __init__(self, kind: str, reason: str) -> None:
        self.kind = kind
        super().__init__(reason)


class Child:
    """A started contender; use as a context manager.

    Parameters
    ----------
    contender : str
        A name in peers.MODULES.
    threads : int
    python : path, optional
        The Python that has its library; default: this one.
    """

    def __init__(self, contender: str, threads: int, python: str | None = None) -> None:
        self.contender, self.threads = contender, threads
        self.about: dict[str, str] = {}
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        command = [python or sys.executable, "-m", "ringmpi.bench.worker", contender, str(threads)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                text=True,
                env=unpinned() | dict.fromkeys(THREADS, str(threads)),
            )
        except OSError as error:
            raise NoAnswerError("absent", f"{command[0]} cannot be started: {error.strerror}") from None

    def __enter__(self) -> Self:
        """Nothing to do: it has started."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()
        self._said.close()

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def prepare(self, case: Case) -> float:
        """Have it ready for a case -> the amount of a ceiling; NoAnswerError otherwise. The same for all below."""
        return self._prepared({"case": asdict(case)})

    def prepare_hard(self, name: str) -> None:
        """Have it ready for a case of hard.py."""
        self._prepared({"hard": name})

    def run(self, times: int = 1) -> tuple[float, float]:
        """Wall and CPU seconds of a run; of the mean of `times`."""
        found = self._ask({"run": times})
        return found["wall"], found["cpu"]

    def answer(self) -> tuple[list[NDArray[Any]], int | None]:
        """What it computes, and how many pairs it says it has attended to."""
        with tempfile.TemporaryDirectory(prefix="ringmpi-bench-") as folder:
            path = Path(folder) / "answer.npz"
            pairs = self._ask({"answer": str(path)})["pairs"]
            with np.load(path) as arrays:
                return [arrays[name] for name in arrays.files], pairs

    def _prepared(self, wanted: dict[str, Any]) -> float:
        found = self._ask({"prepare": wanted})
        self.about = found["about"]
        return float(found["amount"])

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """Between orders it is stopped: threads that spin while they wait would take the cores of the next one."""
        self._process.send_signal(signal.SIGCONT)
        line = self._answered(order)
        self._process.send_signal(signal.SIGSTOP)
        found: dict[str, Any] = json.loads(line)
        for kind in ("unsupported", "absent", "refused"):
            if kind in found:
                raise NoAnswerError(kind, found[kind])
        return found

    def _answered(self, order: dict[str, Any]) -> str:
        given, taken = self._process.stdout, self._process.stdin
        if given is None or taken is None:
            raise NoAnswerError("error", "it has no pipes")
        try:
            taken.write(json.dumps(order) + "\n")
            taken.flush()
        except OSError:
            raise NoAnswerError("absent", self._last_words()) from None
        if not select.select([given], [], [], PATIENCE_SECONDS)[0]:
            self._process.kill()
            raise NoAnswerError("error", f"no answer for {PATIENCE_SECONDS:g} s")
        line = given.readline()
        if not line:
            raise NoAnswerError("error" if self.about else "absent", self._last_words())
        return line

    def _last_words(self) -> str:
        code = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return f"it ended with {code}" + (f": {lines[-1]}" if lines else "")
