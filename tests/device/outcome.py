"""What a check has found."""

from __future__ import annotations

from dataclasses import dataclass

SHOWN = 400  # characters of an error


@dataclass(frozen=True)
class Outcome:
    """Of one check.

    Attributes
    ----------
    name : str
    passed : bool or None
        None: it could not be run; `detail` says why.
    detail : str
    """

    name: str
    passed: bool | None
    detail: str = ""

    def __str__(self) -> str:
        word = {True: "passed", False: "FAILED", None: "not run"}[self.passed]
        return f"{self.name}: {word}{f', {self.detail}' if self.detail else ''}"


def failed(name: str, error: BaseException) -> Outcome:
    """A check that an error has ended, in one line."""
    return Outcome(name, False, f"{type(error).__name__}: {' '.join(str(error).split())[:SHOWN]}")
