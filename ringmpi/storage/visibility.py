"""Files that other nodes have written: network file systems show them after some seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("ringmpi")

VISIBILITY_SECONDS = 5.0
LOOK_SECONDS = 0.1


def missing(paths: Sequence[Path]) -> list[Path]:
    """Those of some files that do not appear within VISIBILITY_SECONDS, which is said where there is need to wait.

    Raises
    ------
    OSError
        If a directory may not be searched.
    """
    absent = [path for path in paths if not path.exists()]
    if absent:
        others = f" and {len(absent) - 1} others are" if len(absent) > 1 else " is"
        log.warning("%s%s not there; looking again for %g s", absent[0], others, VISIBILITY_SECONDS)
    deadline = time.monotonic() + VISIBILITY_SECONDS
    while absent and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        for folder in {path.parent for path in absent}:
            with suppress(OSError):
                list(folder.iterdir())  # a network file system asks its server again
        absent = [path for path in absent if not path.exists()]
    return absent
