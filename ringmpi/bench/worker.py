"""The contender's side of child.py: `python -m ringmpi.bench.worker CONTENDER THREADS` answers JSON with JSON.

    {"prepare": {...}}  -> {"about": {...}, "amount": x}   or {"unsupported": why}, {"absent": why}, {"refused": why}
    {"run": times}      -> {"wall": seconds, "cpu": seconds}, for one of them
    {"answer": path}    -> {"pairs": n or null}; the arrays are in that .npz file

It may run in a Python that has NumPy and its library and nothing else.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np

from ringmpi.bench.hard import HARD
from ringmpi.bench.peers import CEILINGS, MODULES, AbsentError, Prepared, UnsupportedError
from ringmpi.bench.questions import Case, Question

PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>


class Worker:
    """One contender."""

    def __init__(self, contender: str, threads: int) -> None:
        self._contender, self._threads = contender, threads
        self._prepared: Prepared | None = None

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """Do what one line asks."""
        known: dict[str, Callable[[Any], dict[str, Any]]] = {
            "prepare": self._prepare,
            "run": self._run,
            "answer": self._answer,
        }
        [(name, argument)] = order.items()
        try:
            return known[name](argument)
        except UnsupportedError as reason:
            return {"unsupported": str(reason)}
        except (ImportError, AbsentError) as error:
            return {"absent": str(error)}
        except Exception as error:  # a message of the peer's own
            return {"refused": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"}

    def _prepare(self, wanted: dict[str, Any]) -> dict[str, Any]:
        self._prepared = None
        module = import_module(f"ringmpi.bench.peers.{MODULES[self._contender]}")
        question: Question | None = None
        if self._contender not in CEILINGS:
            question = HARD[wanted["hard"]].question() if "hard" in wanted else Case(**wanted["case"]).question()
        backward = wanted.get("case", {}).get("backward", False)
        self._prepared = module.prepare(self._contender, question, backward=backward, threads=self._threads)
        return {"about": self._prepared.about, "amount": self._prepared.amount}

    def _run(self, times: int) -> dict[str, Any]:
        run = self._ready().run
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(times):
            run()
        return {"wall": (time.perf_counter() - wall) / times, "cpu": (time.process_time() - cpu) / times}

    def _answer(self, path: str) -> dict[str, Any]:
        prepared = self._ready()
        result = prepared.run()
        np.savez(path, *prepared.read(result))
        return {"pairs": prepared.pairs(result)}

    def _ready(self) -> Prepared:
        if self._prepared is None:
            raise RuntimeError("nothing is prepared")
        return self._prepared


def end_with_parent() -> None:
    """Have the system end this process when the one that started it is gone: a stopped one would not see it go."""
    with suppress(OSError, AttributeError):  # of Linux alone
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def main() -> None:
    """Answer until there are no more orders. What libraries print goes to stderr."""
    end_with_parent()
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker(sys.argv[1], int(sys.argv[2]))
    for line in sys.stdin:
        replies.write(json.dumps(worker.answer(json.loads(line))) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
