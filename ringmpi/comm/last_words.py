"""What a process says before it ends a job, where it still can."""

from __future__ import annotations

import sys
from contextlib import suppress


def last_words(text: str) -> None:
    """Write to stderr; nothing where that is closed or full: the job has to be ended all the same."""
    with suppress(OSError, ValueError, AttributeError):  # None is a stream that was closed before Python started
        sys.stdout.flush()
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()
