"""F and B as they are: `mpirun -n N python -m ringmpi.bench.measure` times kernels and hops with all N ranks at work.

`measure_rates` starts that and reads its answer; it touches no MPI itself. The problem travels in a file of this
user, as a pickle that only this module writes and reads.
"""

from __future__ import annotations

import json
import os
import pickle
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ringmpi.backends import get_backend
from ringmpi.backends.base import Backend
from ringmpi.backends.memory import HOST, Memory
from ringmpi.comm.device_ring import reaching
from ringmpi.comm.protocol import Communicator, Flight, Message
from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.partial import empty_partial
from ringmpi.core.problem import Problem
from ringmpi.core.rank_work import RankWork
from ringmpi.core.work import KEY_START, KEY_STOP, ROW_START, ROW_STOP, Work, counted_from, cut
from ringmpi.errors import RingError
from ringmpi.passes.before_the_loop import settle_memory
from ringmpi.planner.balance import key_bytes
from ringmpi.planner.machines import Rates
from ringmpi.planner.roofline import flops_a_pair

if TYPE_CHECKING:
    from ringmpi.comm.mpi import MPIRing

KERNEL_SECONDS = 3.0
CALLS_LOOKED_AT = 4096
HOPS = 12
LARGEST_HOP_BYTES = 1 << 28
PATIENCE_SECONDS = 300


def measure_rates(problem: Problem, backend: str, *, environment: Mapping[str, str] | None = None) -> Rates:
    """Time kernels and hops on as many ranks as the problem has, started by mpirun (or what MPIRUN says).

    The ranks get `environment`, by default that of this process.

    Raises
    ------
    RingError
        If there is no launcher, or the ranks fail.
    """
    with tempfile.TemporaryDirectory(prefix="ringmpi-measure-") as folder:
        path = Path(folder) / "problem"
        path.write_bytes(pickle.dumps((problem, backend)))
        found = run_on_ranks(problem.size, "ringmpi.bench.measure", str(path), environment=environment)
    return Rates(found["flops"], found["bandwidth"], f"measured on {problem.size} ranks, all at work")


def run_on_ranks(
    size: int,
    module: str,
    argument: str,
    *,
    patience: float = PATIENCE_SECONDS,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Run `python -m module argument` on `size` ranks; what the last line of their stdout says in JSON.

    Parameters
    ----------
    environment : mapping, optional
        Of the ranks; default: that of this process.

    Raises
    ------
    RingError
        If there is no launcher, the ranks fail, or they need more than `patience` seconds.
    """
    command = [*_launcher(), "-n", str(size), sys.executable, "-m", module, argument]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=patience, check=False, env=environment)
    except subprocess.TimeoutExpired:
        raise RingError(f"{shlex.join(command)} did not end within {patience:g} s. Ask for less.") from None
    if done.returncode:
        raise RingError(f"{shlex.join(command)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _launcher() -> list[str]:
    """The words of MPIRUN, else the mpirun beside this Python, else the first in PATH."""
    beside = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
    command = shlex.split(os.environ.get("MPIRUN", "")) or ([beside] if beside else [])
    if not command:
        raise RingError("this needs mpirun: there is none beside this Python or in PATH. Set MPIRUN to your launcher.")
    return command


def seconds_of_kernels(problem: Problem, rank: int, backend: Backend) -> tuple[float, int]:
    """Time calls of this rank, spread over its pass -> (seconds, pairs over batch and query heads)."""
    heads, work = problem.heads, RankWork(problem, rank)
    calls = [
        call
        for piece in np.flatnonzero(work.pairs())[:CALLS_LOOKED_AT].tolist()
        for call in cut(work.table(piece), backend.call_budget(heads, problem.dtype))
    ]
    rng = np.random.default_rng(rank)
    seconds, pairs, deadline = 0.0, 0, time.perf_counter() + KERNEL_SECONDS
    for nth, call in enumerate([calls[0], *_spread(calls)] if calls else []):
        near, rows, keys = rebased(call)
        shapes = [(heads.query_heads, rows, heads.head_dim), (heads.key_heads, keys, heads.head_dim)]
        shapes.append((heads.key_heads, keys, heads.value_dim))
        q, k, v = (
            rng.standard_normal((heads.batch, *shape), np.float32).astype(problem.dtype, copy=False) for shape in shapes
        )
        dtype = accumulate_dtype(problem.dtype)
        q, k, v = (backend.memory.put(array, aligned=True) for array in (q, k, v))
        partial = empty_partial(heads.batch, heads.query_heads, rows, heads.value_dim, dtype).moved(backend.memory.put)
        start = time.perf_counter()
        _, attended = backend.attend(q, k, v, near, problem.scoring, into=partial)
        if nth:  # the first one warms up
            seconds, pairs = seconds + time.perf_counter() - start, pairs + attended
        if time.perf_counter() > deadline:
            break
    return seconds, pairs


def _spread(calls: list[Work]) -> list[Work]:
    """All calls, first those that lie far apart: whenever time is up, the whole pass has been sampled."""
    order = sorted(range(len(calls)), key=lambda n: (n * 0.6180339887498949) % 1)
    return [calls[n] for n in order]


def rebased(call: Work) -> tuple[Work, int, int]:
    """The same work on arrays that hold no more rows and keys than it touches -> (work, rows, keys)."""
    near = counted_from(call, int(call[:, ROW_START].min()), int(call[:, KEY_START].min()))
    return near, int(near[:, ROW_STOP].max()), int(near[:, KEY_STOP].max())


def seconds_of_hops(ring: MPIRing, nbytes: int, memory: Memory = HOST) -> float:
    """Median time of a hop of `nbytes`, all ranks sending to the next. Collective.

    memory : where arrays lie; on devices, once it is settled how messages reach them (before_the_loop.settle_memory)
    """
    arrays, between = hop_arrays(memory, nbytes), reaching(memory.ferry, ring)
    times = []
    for _ in range(HOPS):
        ring.exchange(None, "starting a hop")
        start = time.perf_counter()
        ring.drive(iter([start_hop(between, *arrays)]))
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))


def hop_arrays(memory: Memory, nbytes: int) -> tuple[Any, Any]:
    """Bytes that leave, and room for those that come."""
    ones = np.ones((2, nbytes), np.uint8)
    return memory.put(ones[0]), memory.put(ones[1])


def start_hop(ring: Communicator, outgoing: Any, incoming: Any) -> Flight:
    """Send to the next rank, and receive from the one before. Collective."""
    following, before = (ring.rank + 1) % ring.size, (ring.rank - 1) % ring.size
    return ring.start([Message(following, 1, outgoing)], [Message(before, 1, incoming)])


def main() -> None:
    """Measure on this rank; rank 0 prints the rates as JSON."""
    from ringmpi.comm.session import Session  # starts MPI
    from ringmpi.ring import Ring

    with Session() as session:
        ring = Ring(session.comm, timeout=PATIENCE_SECONDS).transport
        problem, backend = pickle.loads(Path(sys.argv[1]).read_bytes())
        kernel = get_backend(backend, threads=ring.threads, local_rank=ring.local_rank)
        hop = min(max(problem.keys.shard_length(0) * key_bytes(problem), 1), LARGEST_HOP_BYTES)
        if ring.size > 1:
            settle_memory(ring, kernel)
        hops = ring.exchange(seconds_of_hops(ring, hop, kernel.memory) if ring.size > 1 else 0.0, "timing hops")
        kernels = ring.exchange(seconds_of_kernels(problem, ring.rank, kernel), "timing kernels")
        seconds, pairs = (sum(column) for column in zip(*kernels, strict=True))
        flops = pairs / problem.heads.query_slabs * flops_a_pair(problem.heads) / seconds if seconds else 1.0
        bandwidth = hop / max(hops) if max(hops) else flops
        if ring.rank == 0:
            sys.stdout.write(json.dumps({"flops": flops, "bandwidth": bandwidth}) + "\n")


if __name__ == "__main__":
    main()
