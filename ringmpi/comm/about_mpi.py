"""What MPI library mpi4py has found: a program of its own, `python -m ringmpi.comm.about_mpi`.

To start MPI may hang or end the process, and must happen once only, so whoever is curious asks a child process.
It writes a JSON object a line: first what is known without starting MPI, then what is known after.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

LEVELS = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")


def before_start() -> dict[str, Any]:
    """mpi4py and the library, without starting it. "error" is there if mpi4py cannot be loaded."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI
    except Exception as error:  # ImportError, RuntimeError of a missing library, or what a broken one brings
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())}
    vendor, version = MPI.get_vendor()
    return {
        "mpi4py": mpi4py.__version__,
        "flavour": vendor,
        "library": " ".join(MPI.Get_library_version().strip("\0").split("\n")[0].split()),
        "version": ".".join(map(str, version)),
        "standard": ".".join(map(str, MPI.Get_version())),
        "file": _loaded_file(),
    }


def after_start() -> dict[str, Any]:
    """The level of threads that the library grants, and what it says of GPU memory; starts MPI."""
    from mpi4py import MPI

    from ringmpi.comm.cuda_support import says_cuda_aware

    MPI.Init_thread(MPI.THREAD_MULTIPLE)
    levels = (MPI.THREAD_SINGLE, MPI.THREAD_FUNNELED, MPI.THREAD_SERIALIZED, MPI.THREAD_MULTIPLE)
    granted, takes = LEVELS[levels.index(MPI.Query_thread())], says_cuda_aware()
    MPI.Finalize()
    return {"thread level": granted, "takes GPU memory": takes}


def _loaded_file() -> str | None:
    """Where libmpi was loaded from; None where the kernel does not say."""
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            if Path(path := line.split(maxsplit=5)[-1]).name.startswith("libmpi"):
                return path
    return None


def main() -> None:
    """Write both."""
    found = before_start()
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    if "error" not in found:
        sys.stdout.write(json.dumps(after_start()) + "\n")


if __name__ == "__main__":
    main()
