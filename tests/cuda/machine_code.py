"""What is in the machine code of a kernel: instructions, counted."""

from __future__ import annotations

import collections
import re
import subprocess
from importlib.metadata import files
from pathlib import Path

SECONDS = 60


def disassembler() -> Path:
    """The one that comes from the package index."""
    (found,) = (path for path in files("nvidia-cuda-nvdisasm") or () if path.name == "nvdisasm")
    return Path(str(found.locate()))


def instructions(cubin: Path) -> collections.Counter[str]:
    """How often each instruction occurs, with the first of its modifiers: HMMA.16816, LDSM.16, LDGSTS.E."""
    command = [str(disassembler()), "-c", str(cubin)]
    return counted(subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS).stdout)


def counted(text: str) -> collections.Counter[str]:
    """The same, of what the disassembler writes."""
    return collections.Counter(re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]+(?:\.\w+)?)", text))
