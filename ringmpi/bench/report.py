"""What a benchmark found: one form for all of them, so that one table, one picture and one file serve all."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ringmpi import __version__
from ringmpi.bench.figures import Figure
from ringmpi.errors import StorageError


class Row(BaseModel):
    """What was measured, its figures by name, and a verdict where there is one.

    `note` says why figures are missing, or what to think of them.
    """

    model_config = ConfigDict(extra="forbid")

    subject: dict[str, str]
    figures: dict[str, Figure] = {}
    verdict: str = ""
    note: str = ""


class Report(BaseModel):
    """A benchmark.

    Attributes
    ----------
    bench : str
        Which one.
    main : str
        The figure that a picture shows.
    settings : dict
        As it was called.
    terms : dict
        What the figures mean.
    machine : dict
        What it was measured on (machine.py).
    absent : dict
        Peers that were asked for and are not here, and why.
    """

    model_config = ConfigDict(extra="forbid")

    layout: Literal[1] = 1
    bench: Literal["kernel", "hop", "ring", "io", "exactness"]
    main: str
    ringmpi: str = __version__
    measured: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    settings: dict[str, Any]
    terms: dict[str, str]
    machine: dict[str, Any]
    rows: list[Row]
    absent: dict[str, str] = {}

    def shared(self) -> dict[str, str]:
        """What all rows have in common."""
        first = self.rows[0].subject if len(self.rows) > 1 else {}
        return {
            name: value for name, value in first.items() if all(row.subject.get(name) == value for row in self.rows)
        }

    def subjects(self) -> list[str]:
        """Names of what tells rows apart."""
        shared = self.shared()
        return [name for name in dict.fromkeys(n for row in self.rows for n in row.subject) if name not in shared]

    def figures(self) -> list[str]:
        """Names of all figures, in the order of their first appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row.figures))

    def verdicts(self) -> dict[str, dict[str, str]]:
        """Case -> contender -> verdict; empty where there are none."""
        found: dict[str, dict[str, str]] = {}
        for row in self.rows:
            if row.verdict:
                found.setdefault(row.subject["case"], {})[row.subject["contender"]] = row.verdict
        return found

    def where(self) -> str:
        """The machine in a few words."""
        cores, load = self.machine.get("cores", {}), self.machine.get("load average", ["?"])
        return f"{cores.get('processor', 'unknown')}, {cores.get('CPUs allowed', '?')} CPUs, load {load[0]}"

    def write(self, path: Path) -> None:
        """Write it as JSON.

        Raises
        ------
        StorageError
            If the file cannot be written.
        """
        try:
            path.write_text(json.dumps(self.model_dump(), allow_nan=False, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise StorageError(f"cannot write {path}: {reason}. Name another file.") from None


def read_report(path: Path) -> Report:
    """The report in a file that `Report.write` has written."""
    return Report.model_validate_json(path.read_text(encoding="utf-8"))
