"""What the manifests of a run say of it, the same in all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RunFacts:
    """What a manifest says of the run that writes it.

    Attributes
    ----------
    identity, layout : dict
        past.py.
    attempt : dict
        What is recorded of this run: started, ranks, hosts.
    stamps : dict
        Size and time of change of the input, as rank 0 sees them: file systems may show nodes other times.
    output : str
        Where the result goes, as it was given.
    overwrites : bool
        It may replace what is there: the run, or one that it goes on from, was begun with --force.
    """

    identity: dict[str, Any]
    layout: dict[str, Any]
    attempt: dict[str, Any]
    stamps: dict[str, int]
    output: str
    overwrites: bool
