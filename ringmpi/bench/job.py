"""A benchmark on ranks: in the job that a launcher has started, or in one that is started for it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from ringmpi.bench.machine import unpinned
from ringmpi.bench.measure import run_on_ranks
from ringmpi.comm.launcher import SIZES, launched_rank, launched_size
from ringmpi.errors import RingMpiError
from ringmpi.ring import Ring

PATIENCE_SECONDS = 3600.0
Found = dict[str, Any]
OnRanks = Callable[[Ring, Found], Found]


def under_launcher() -> bool:
    """Whether mpirun or its like has started this process with others."""
    return launched_size(os.environ)[0] > 1


def speaks() -> bool:
    """Whether this process is the one that tells what was found."""
    return launched_rank(os.environ) == 0


def in_this_job(measure: OnRanks, settings: Found) -> Found | None:
    """Have all ranks of this job measure -> what they found, on rank 0. Collective."""
    from ringmpi.comm.session import Session  # starts MPI

    with Session() as session, Ring(session.comm, timeout=PATIENCE_SECONDS) as ring:
        found = measure(ring, settings)
        found["job"] = {"ranks": ring.size, "threads a rank": ring.threads} | session.versions()
        return found if ring.rank == 0 else None


def in_a_job(module: str, ranks: int, threads: int, settings: Found) -> Found:
    """Start a job of `ranks` ranks with so many threads each, and have it measure -> what it found."""
    found: Found = run_on_ranks(
        ranks, module, json.dumps(settings), patience=PATIENCE_SECONDS, environment=environment_of_ranks(threads)
    )
    return found


def environment_of_ranks(threads: int) -> dict[str, str]:
    """That of a job that is started from here; in a batch job of Slurm its launcher has to learn of the nodes."""
    is_rank = any(name in os.environ for name in SIZES)  # then they tell of its own step
    batch = {} if is_rank else {name: value for name, value in os.environ.items() if name.startswith("SLURM_")}
    return unpinned() | batch | {"OMP_NUM_THREADS": str(threads)}


def answer(measure: OnRanks) -> None:
    """What a module that `in_a_job` starts does: measure, and let rank 0 say what was found."""
    try:
        found = in_this_job(measure, json.loads(sys.argv[1]))
    except RingMpiError as error:  # of all ranks: one sentence, and not where it was raised
        sys.exit(1 if error.said_elsewhere else str(error))
    if found is not None:
        sys.stdout.write(json.dumps(found) + "\n")
