"""`ringmpi bench io`: what a run does with its output and its state, beside plain files of the same bytes on one disk.

A write ends when the file is on the disk (fsync). Before a read the system is asked to forget the file; where it does
not (memory file systems, some network ones), reads are those of its memory.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.bench.figures import Figure, figure, rate, ratio
from ringmpi.bench.machine import machine
from ringmpi.bench.report import Report, Row
from ringmpi.core.sharding import Sharding
from ringmpi.errors import StorageError
from ringmpi.passes.timeline import RankTimeline
from ringmpi.storage.account import Account, PairCounts, Provenance, Timeline
from ringmpi.storage.file_digest import fingerprint
from ringmpi.storage.files import free_bytes
from ringmpi.storage.layout import result_shapes
from ringmpi.storage.merge import merge_shards
from ringmpi.storage.rank_state import StateArray, write_rank_state
from ringmpi.storage.results import Results
from ringmpi.storage.shards import shard_path, write_shard

HEADS, DIM = 8, 64
BLOCK_BYTES = 8 << 20
TERMS = {
    "speed": "bytes of the output over wall seconds; CPU: seconds of this process",
    "of plain": "speed over that of a plain file in the same round",
    "plain write": "blocks of 8 MiB, then fsync",
    "shards": "write_shard for each rank, one after the other: HDF5, fsync, rename",
    "merge": "merge_shards: reads the shards, writes one file with its checksums (by a second thread), fsync, rename",
    "checkpoint": "write_rank_state, of one rank that has all of it: HDF5, digest, fsync, rename",
    "plain read": "blocks of 8 MiB, file out of the cache",
    "check": "the digest of a checkpoint's file, which a resumed run compares first; file out of the cache",
    "read": "/output of the merged file, file out of the cache",
}


def bench_disk(*, folder: Path, size: int, shards: int, rounds: int) -> Report:
    """Time writing and reading `size` MB of output in `folder`, as of so many ranks.

    Raises
    ------
    StorageError
        If there is not enough room (four times the size), or a file cannot be written.
    """
    facts, nbytes = machine(), size * 1_000_000
    if free_bytes(folder / "x") < 4 * nbytes:
        raise StorageError(f"{folder}: {4 * nbytes:,} bytes are needed and {free_bytes(folder / 'x'):,} free.")
    with tempfile.TemporaryDirectory(prefix="ringmpi-bench-", dir=folder) as name:
        output = _Output(Path(name), nbytes, shards)
        seconds: dict[str, list[tuple[float, float]]] = {step: [] for step in output.steps()}
        for nth in range(rounds + 1):  # the first one warms up
            for step, run in output.steps().items():
                took = _timed(run)
                if nth:
                    seconds[step].append(took)
    settings = {"bytes": output.nbytes, "shards": shards, "rounds": rounds}
    return Report(
        bench="io", main="speed", settings=settings, terms=TERMS, machine=facts, rows=_rows(output.nbytes, seconds)
    )


def _rows(nbytes: int, seconds: dict[str, list[tuple[float, float]]]) -> list[Row]:
    walls = {step: figure("s", [wall for wall, _ in taken]) for step, taken in seconds.items()}
    plain = {step: f"plain {'read' if step in ('read', 'check') else 'write'}" for step in walls if "plain" not in step}
    rows = []
    for step, wall in walls.items():
        figures: dict[str, Figure] = {"speed": rate(nbytes / 1e6, wall, "MB/s"), "wall": wall}
        figures["CPU"] = figure("s", [cpu for _, cpu in seconds[step]])
        if step in plain:
            figures["of plain"] = ratio(walls[plain[step]], wall)
        rows.append(Row(subject={"step": step}, figures=figures))
    return rows


def _timed(run: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


class _Output:
    """An output of about `nbytes`, in shards, and what is done with it."""

    def __init__(self, folder: Path, nbytes: int, shards: int) -> None:
        length = max(nbytes // (HEADS * DIM * 4), shards)
        self._plain, self._merged, self._state = folder / "plain", folder / "out.h5", folder / "state.h5"
        self._sharding = Sharding.zigzag(length, shards)
        self._array = np.random.default_rng(0).standard_normal((1, HEADS, length, DIM), np.float32)
        self.nbytes = self._array.nbytes

    def steps(self) -> dict[str, Callable[[], object]]:
        """In this order: each needs what those before have left."""
        return {
            "plain write": self._write_plain,
            "shards": self._write_shards,
            "merge": self._merge,
            "checkpoint": self._write_state,
            "plain read": self._read_plain,
            "check": lambda: fingerprint(self._state),
            "read": self._read,
        }

    def _write_plain(self) -> None:
        raw = self._array.reshape(-1).view(np.uint8).data
        with self._plain.open("wb", buffering=0) as file:
            for start in range(0, len(raw), BLOCK_BYTES):
                file.write(raw[start : start + BLOCK_BYTES])
            os.fsync(file.fileno())

    def _write_shards(self) -> None:
        for rank, ranges in enumerate(self._sharding.shards):
            rows = self._sharding.select(self._array, rank)
            path = shard_path(self._merged, rank)
            write_shard(path, ranges=ranges, output=rows, log_sum_exp=np.zeros(rows.shape[:3], np.float32))

    def _merge(self) -> None:
        ranks = self._sharding.size
        parts = [shard_path(self._merged, rank) for rank in range(ranks)]
        shapes = result_shapes(self._array.shape)
        merge_shards(parts, self._merged, shapes=shapes, account=_account(ranks), force=True)
        _forget(self._merged)

    def _write_state(self) -> None:
        write_rank_state(self._state, {"sums": StateArray([range(self._array.shape[2])], self._array)}, {})
        _forget(self._state)
        _forget(self._plain)

    def _read_plain(self) -> None:
        with self._plain.open("rb", buffering=0) as file:
            block = bytearray(BLOCK_BYTES)
            while file.readinto(block):
                pass

    def _read(self) -> None:
        found: NDArray[Any] = np.empty_like(self._array)
        with Results(self._merged) as results:
            results.output.read([range(found.shape[2])], found)


def _forget(path: Path) -> None:
    """Ask the system to drop a file from its memory."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _account(ranks: int) -> Account:
    """Of a run that did nothing."""
    counters = [RankTimeline(ranks).counters() for _ in range(ranks)]
    timeline: dict[str, Any] = {name: np.stack([one[name] for one in counters]) for name in counters[0]}
    return Account(
        provenance=Provenance(
            versions={},
            hosts=("bench",) * ranks,
            ring_order=tuple(range(ranks)),
            configuration="",
            command_line="ringmpi bench io",
            started="",
            finished="",
            input_identity={},
        ),
        timeline=Timeline(**timeline, peak_memory_bytes=np.zeros(ranks, np.int64)),
        counts=PairCounts(pairs_asked=0, pairs_attended=0, query_slabs=1),
    )
