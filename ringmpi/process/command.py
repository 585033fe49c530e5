"""How this program is started, in words that can be typed again."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

PROGRAM = "ringmpi"
MAIN = ("ringmpi", "__main__.py")  # where a path ends that Python gives for `-m ringmpi`


def program() -> str:
    """What starts ringmpi here: `python`, where that is the Python at work, else its path."""
    python = Path(sys.executable)
    if Path(shutil.which("python") or "").parent == python.parent:
        return f"python -m {PROGRAM}"
    here = Path.cwd()
    return f"{shlex.quote(str(python.relative_to(here) if python.is_relative_to(here) else python))} -m {PROGRAM}"


def as_typed(arguments: Sequence[str]) -> str:
    """A command from `sys.argv`."""
    first, *others = arguments
    return shlex.join([PROGRAM if Path(first).parts[-2:] == MAIN else first, *others])
