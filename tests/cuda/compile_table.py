"""Compiles every kernel by NVRTC, and prints what came of it, a line each: `python -m tests.cuda.compile_table`.

    python -m tests.cuda.compile_table [WORDS]    WORDS: only the lines that hold one of these
    python -m tests.cuda.compile_table --docs     also writes docs/benchmarks/cuda-instances.json

What ends it with an error: a byte that does not fit into registers, more registers or shared memory than the blocks of
a multiprocessor may have together, an instruction missing that the kernel is built on.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

from ringmpi.backends.cuda.addition import EVERY_ADDITION, THREADS, Addition
from ringmpi.backends.cuda.compiler import Compiled, version
from ringmpi.backends.cuda.instances import Instance, every_instance
from ringmpi.backends.cuda.kernel_cache import cached_kernel
from tests.cuda.machine_code import instructions

ARCHITECTURES = ("sm_80", "sm_90")
NEWEST, NEWEST_LABELS = "sm_100", ("output-float16-64-rounded", "gradient-float64-64")  # one of each template
REGISTERS = 65536  # of a multiprocessor, the same on all of these
REGISTERS_AT_ONCE = 256  # a warp is given a multiple of this
SHARED_LIMIT = 163 << 10  # bytes of a block on sm_80, the least of these; GPUs of 8.6, 8.9, 12.x have 99 KiB
SHARED = 164 << 10  # of a multiprocessor, with 1 KiB for the system a block
# Products, loads of their factors, copies that run beside, powers: how instructions begin that each kernel must hold.
NEEDED = {
    2: ("HMMA.16816", "LDSM.16", "LDGSTS.E", "MUFU.EX2"),
    4: ("FFMA", "LDS.128", "LDGSTS.E", "MUFU.EX2"),
    8: ("DMMA", "LDS.64", "LDGSTS.E", "DFMA"),
}
NEEDED_TO_ADD = {4: ("FADD", "LDG.E", "STG.E"), 8: ("DADD", "LDG.E", "STG.E")}
ADDITION_BLOCKS = 16  # of a multiprocessor: as many threads as it runs at once, since each waits for memory
EVERY_KERNEL: tuple[Instance | Addition, ...] = (*every_instance(), *EVERY_ADDITION)
DOCS = Path(__file__).parents[2] / "docs/benchmarks/cuda-instances.json"


@dataclass(frozen=True)
class Line:
    """One kernel for one kind of GPU; an addition has numbers of a block for rows, and no tile."""

    label: str
    architecture: str
    registers: int
    spills: int
    shared: int
    rows: int
    tile: int
    blocks: int
    instructions: dict[str, int]
    faults: tuple[str, ...]
    cpu_seconds: float

    def __str__(self) -> str:
        counts = " ".join(f"{name.split('.')[0].lower()}={count}" for name, count in self.instructions.items())
        return (
            f"{self.label} {self.architecture} registers={self.registers} spills={self.spills} shared={self.shared} "
            f"rows={self.rows} tile={self.tile} blocks={self.blocks} {counts}"
        )


def main() -> int:
    """Print the table; 0 where all is as it must be."""
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    everything = not words
    chosen = [job for job in _jobs() if everything or any(word in f"{job[0].label} {job[1]}" for word in words)]
    started, lines = time.perf_counter(), sorted(_compiled(chosen), key=str)
    for line in lines:
        print(line)  # noqa: T201
    faults = [f"{line.label} {line.architecture}: {fault}" for line in lines for fault in line.faults]
    print(  # noqa: T201
        f"{len(lines)} kernels by NVRTC {'.'.join(map(str, version()))} in {time.perf_counter() - started:.0f} s "
        f"({sum(line.cpu_seconds for line in lines):.0f} s of one core), {len(faults)} faults"
    )
    for fault in faults:
        print(fault)  # noqa: T201
    if "--docs" in sys.argv and everything and not faults:
        _write_docs(lines)
    return bool(faults)


def blocks_of(kernel: Instance | Addition) -> int:
    """Of which a multiprocessor is to have room at once."""
    return kernel.size.blocks if isinstance(kernel, Instance) else ADDITION_BLOCKS


def needed_by(kernel: Instance | Addition) -> tuple[str, ...]:
    """How the instructions begin that it must hold."""
    return (NEEDED if isinstance(kernel, Instance) else NEEDED_TO_ADD)[kernel.dtype.itemsize]


def faults_of(kernel: Instance | Addition, compiled: Compiled, counts: dict[str, int]) -> tuple[str, ...]:
    """What is wrong with a kernel, in words."""
    blocks = blocks_of(kernel)
    together = blocks * (kernel.shared_bytes + 1024)
    room = registers_limit(blocks)
    found = [f"{compiled.spilled} bytes spilled, none permitted"] * (compiled.spilled > 0)
    found += [f"{compiled.stack} bytes of local memory, none permitted"] * (compiled.stack > 0)
    found += [f"{compiled.registers} registers, {room} permitted for {blocks} blocks"] * (compiled.registers > room)
    found += [f"{kernel.shared_bytes} bytes of shared memory in a block"] * (kernel.shared_bytes > SHARED_LIMIT)
    found += [f"{together} bytes of shared memory in {blocks} blocks"] * (together > SHARED)
    return tuple(found + [f"no {name}" for name, count in counts.items() if not count])


def registers_limit(blocks: int) -> int:
    """Of a thread, where so many blocks of four warps share a multiprocessor."""
    return min(REGISTERS // (4 * blocks) // REGISTERS_AT_ONCE * REGISTERS_AT_ONCE // 32, 255)


def _jobs() -> Iterator[tuple[Instance | Addition, str]]:
    """Longest compilations first, so that no process is left alone with one at the end."""
    kernels = sorted(EVERY_KERNEL, key=lambda kernel: (-kernel.dtype.itemsize, -getattr(kernel, "width", 0)))
    yield from product(kernels, ARCHITECTURES)
    yield from ((kernel, NEWEST) for kernel in kernels if kernel.label in NEWEST_LABELS)


def _compiled(jobs: list[tuple[Instance | Addition, str]]) -> Iterator[Line]:
    folder = Path(os.environ.get("CUBIN_FOLDER", Path(tempfile.gettempdir()) / f"ringmpi-cubins-{os.getuid()}"))
    # NVRTC does one thing at a time in a process.
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for done in as_completed(pool.submit(_line, *job, folder) for job in jobs):
            yield done.result()


def _line(kernel: Instance | Addition, architecture: str, folder: Path) -> Line:
    started = time.process_time()
    path, compiled = cached_kernel(kernel, architecture, folder)
    seconds = time.process_time() - started
    found = instructions(path)
    counts = {start: sum(n for name, n in found.items() if name.startswith(start)) for start in needed_by(kernel)}
    return Line(
        label=kernel.label,
        architecture=architecture,
        registers=compiled.registers,
        spills=compiled.spilled,
        shared=kernel.shared_bytes,
        rows=kernel.block_rows if isinstance(kernel, Instance) else THREADS,
        tile=kernel.tile if isinstance(kernel, Instance) else 0,
        blocks=blocks_of(kernel),
        instructions=counts,
        faults=faults_of(kernel, compiled, counts),
        cpu_seconds=seconds,
    )


def _write_docs(lines: list[Line]) -> None:
    rows = [asdict(line) for line in lines]
    for row in rows:
        del row["faults"], row["cpu_seconds"]
    text = ",\n".join(map(partial(json.dumps, sort_keys=False), rows))
    DOCS.write_text(f'{{"nvrtc": "{".".join(map(str, version()))}", "kernels": [\n{text}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
