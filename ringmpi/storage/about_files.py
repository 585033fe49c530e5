"""What a file system does for a run: a program of its own, `python -m ringmpi.storage.about_files DIRECTORY`.

A file system may hang, so whoever is curious asks a child process. It writes a JSON object a line, each as soon as it
is known: how fast files are written, whether a file that gets its name is seen by another process, whether locks hold.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ringmpi.errors import StorageError
from ringmpi.storage.files import free_bytes, sync
from ringmpi.storage.lock import TAKEN, only_run

PROBE_BYTES = 64 << 20
SEEN_SECONDS = 5.0


def written(folder: Path) -> dict[str, Any]:
    """Megabytes per second, with all of it on the disk, and the bytes that are free."""
    path, block = folder / "new", os.urandom(1 << 20)
    began = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(PROBE_BYTES // len(block)):
            file.write(block)
    sync(path)
    return {"MB a second": PROBE_BYTES / (time.perf_counter() - began) / 1e6, "free bytes": free_bytes(folder)}


def seen(folder: Path) -> dict[str, Any]:
    """Whether another process finds a whole file under its last name, within some seconds."""
    (folder / "new").replace(folder / "named")
    sync(folder)

    def look() -> bool:
        give_up = time.monotonic() + SEEN_SECONDS
        while time.monotonic() < give_up:
            if (folder / "named").exists() and not (folder / "new").exists():
                return (folder / "named").stat().st_size == PROBE_BYTES
            time.sleep(0.01)
        return False

    return {"renamed files are seen": _another(look)}


def locked(folder: Path) -> dict[str, Any]:
    """Whether what one process locks is locked for another."""

    def is_refused() -> bool:
        descriptor = os.open(folder / "output.lock", os.O_RDWR)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in TAKEN
        return False

    with only_run(folder / "output"):
        return {"locks hold": _another(is_refused)}


def _another(question: Callable[[], bool]) -> bool:
    """Ask in another process, as another rank would."""
    child = os.fork()
    if child == 0:
        os._exit(0 if question() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main() -> None:
    """Try a folder of its own in the directory; nothing of it stays."""
    try:
        with tempfile.TemporaryDirectory(prefix=".ringmpi-check-", dir=sys.argv[1]) as folder:
            for fact in (written, seen, locked):
                sys.stdout.write(json.dumps(fact(Path(folder))) + "\n")
                sys.stdout.flush()
    except (OSError, StorageError) as error:
        sys.stdout.write(json.dumps({"error": getattr(error, "strerror", None) or str(error)}) + "\n")


if __name__ == "__main__":
    main()
