"""Compiles every kernel by NVRTC, and prints what came of it, a line each: `python -m tests.cuda.compile_table`.

What ends it with an error: a spill beyond those listed here, more shared memory than the smallest GPU gives, an
instruction missing that the kernel is built on.
"""

from __future__ import annotations

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from ringmpi.backends.cuda.compiler import cached_kernel
from ringmpi.backends.cuda.instances import Instance, every_instance
from tests.cuda.machine_code import instructions

ARCHITECTURES = ("sm_80", "sm_90")
SHARED_LIMIT = 163 << 10  # of a block, on the smaller of the two
NEEDED = {
    2: ("HMMA.16816", "LDSM.16", "LDGSTS.E"),  # product of 16 bit on tensor cores, its loads, asynchronous copies
    4: ("FFMA", "LDGSTS.E"),
    8: ("DMMA.884", "LDGSTS.E"),
}
# Heads of 256 columns leave no room for everything else: bytes of a thread that go through memory, by element size.
SPILLS_AT_256 = {2: 800, 4: 0, 8: 1200}


def main() -> int:
    """Print the table; 0 where all is as it must be."""
    folder = Path(os.environ.get("CUBIN_FOLDER", Path(tempfile.gettempdir()) / f"ringmpi-cubins-{os.getuid()}"))
    wanted = sys.argv[1:]
    jobs = [(i, a) for a, i in product(ARCHITECTURES, every_instance()) if not wanted or wanted[0] in f"{i.label} {a}"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = [fault for fault in pool.map(lambda job: _line(*job, folder), jobs) if fault]
    print(f"{len(jobs)} kernels, {len(faults)} faults")  # noqa: T201
    for fault in faults:
        print(fault)  # noqa: T201
    return bool(faults)


def _line(instance: Instance, architecture: str, folder: Path) -> str:
    """Compile one, print its line -> what is wrong with it, or nothing."""
    path, compiled = cached_kernel(instance, architecture, folder)
    counts = instructions(path)
    needed = NEEDED[instance.dtype.itemsize]
    found = " ".join(f"{name}={counts[name]}" for name in needed)
    print(  # noqa: T201
        f"{instance.label} {architecture} registers={compiled.registers} spills={compiled.spilled} "
        f"shared={instance.shared_bytes} rows={instance.block_rows} tile={instance.tile} {found}",
        flush=True,
    )
    permitted = SPILLS_AT_256[instance.dtype.itemsize] if instance.head_dim == 256 else 0
    wrong = [f"{compiled.spilled} bytes spilled, {permitted} permitted"] * (compiled.spilled > permitted)
    wrong += [f"{instance.shared_bytes} bytes of shared memory"] * (instance.shared_bytes > SHARED_LIMIT)
    wrong += [f"no {name}" for name in needed if not counts[name]]
    return f"{instance.label} {architecture}: {'; '.join(wrong)}" if wrong else ""


if __name__ == "__main__":
    sys.exit(main())
