"""What `ringmpi verify` found: a verdict a check, readable by people and by machines."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

NAMES = {"pairs": "pairs of the {of} pass", "certified": "certified {of}"}  # of other kinds: "KIND of OF"


@dataclass(frozen=True)
class Check:
    """One question to an output file and its answer.

    Attributes
    ----------
    kind : str
        What is asked: "digest", "pairs", "rows", "sums" and others. Short and fixed, for machines.
    passed : bool
    text : str
        The finding with its numbers; where it failed also what that means.
    facts : dict
        The numbers of `text`, JSON-able.
    of : str
        Of what it is asked: an array, a pass, a part of a certificate; empty where there is one of this kind.
    """

    kind: str
    passed: bool
    text: str
    facts: dict[str, Any] = field(default_factory=dict)
    of: str = ""

    @property
    def name(self) -> str:
        """Kind and what it is of: "digest of /output", "pairs"."""
        return NAMES.get(self.kind, f"{self.kind} of {{of}}").format(of=self.of) if self.of else self.kind

    def line(self) -> str:
        """`text: ok`, or `FAILED`."""
        return f"{self.text}: {'ok' if self.passed else 'FAILED'}"


@dataclass(frozen=True)
class Certificate:
    """All checks of one output file.

    Attributes
    ----------
    path : str
        The output file.
    seed : int
        Of the choice of rows: the same seed chooses the same rows.
    checks : tuple of Check
    """

    path: str
    seed: int
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """True when every check passed."""
        return all(check.passed for check in self.checks)

    @property
    def count(self) -> str:
        """How many checks failed, of how many; or how many passed."""
        failed = sum(not check.passed for check in self.checks)
        return f"{failed} of {len(self.checks)} checks failed" if failed else f"{len(self.checks)} checks passed"

    def lines(self) -> list[str]:
        """One line a check, and the conclusion."""
        failed = [check.name for check in self.checks if not check.passed]
        conclusion = f"NOT verified: {self.count} ({', '.join(failed)})" if failed else f"verified: {self.count}"
        return [*(check.line() for check in self.checks), f"{self.path} {conclusion}"]

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON; numbers that are not finite as text, which JSON has no other form for."""
        checks = [
            {"name": check.name, "passed": check.passed, "text": check.text, **json_able(check.facts)}
            for check in self.checks
        ]
        return {"file": self.path, "passed": self.passed, "seed": self.seed, "checks": checks}


def json_able(value: Any) -> Any:
    """Facts as JSON has them: numbers that are not finite as text, tuples as lists."""
    if isinstance(value, dict):
        return {key: json_able(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_able(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
