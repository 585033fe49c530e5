"""The runs that together came to an output, where their state was kept: on how many ranks, and the pairs of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringmpi.core.stages import FORWARD, MAP
from ringmpi.storage.layout import ATTEMPTS, ATTEMPTS_DATASETS
from ringmpi.storage.table import write_table


@dataclass(frozen=True)
class Attempts:
    """Runs in their order, the last one last. One that ended before its state was saved has left no trace, nor pairs.

    Attributes
    ----------
    identity : dict
        What was computed, field by field: all of them computed the same.
    started : tuple of str
        ISO 8601 with zone.
    ranks : tuple of int
    pairs, pairs_backward : tuple of int
        That the kernels of each have counted for what became of the output, over batch and query heads.
    """

    identity: dict[str, Any]
    started: tuple[str, ...]
    ranks: tuple[int, ...]
    pairs: tuple[int, ...]
    pairs_backward: tuple[int, ...]

    @staticmethod
    def of(identity: dict[str, Any], attempts: Sequence[Mapping[str, Any]]) -> Attempts:
        """From what manifests say of each: started, ranks, and pairs by stage."""
        pairs: list[dict[str, int]] = [attempt["pairs"] for attempt in attempts]
        return Attempts(
            identity,
            started=tuple(attempt["started"] for attempt in attempts),
            ranks=tuple(attempt["ranks"] for attempt in attempts),
            pairs=tuple(stages.get(FORWARD, 0) for stages in pairs),
            pairs_backward=tuple(
                sum(n for stage, n in stages.items() if stage not in (FORWARD, MAP)) for stages in pairs
            ),
        )

    @property
    def words(self) -> str:
        """How many, and on how many ranks each."""
        runs = ", ".join(
            f"{ranks:,} ranks ({forward + backward:,} pairs)"
            for ranks, forward, backward in zip(self.ranks, self.pairs, self.pairs_backward, strict=True)
        )
        return f"{len(self.ranks):,} run{'' if len(self.ranks) == 1 else 's'}: {runs}"


def write_attempts(file: Any, attempts: Attempts) -> None:
    """Write the group /attempts."""
    group = file.create_group(ATTEMPTS)
    group.attrs["identity"] = json.dumps(attempts.identity)
    write_table(group, ATTEMPTS_DATASETS, attempts)


def read_attempts(group: Any) -> Attempts:
    """Read what `write_attempts` wrote."""
    numbers = {name: tuple(group[name][...].tolist()) for name in ("ranks", "pairs", "pairs_backward")}
    started = tuple(group["started"].asstr()[...].tolist())
    return Attempts(json.loads(group.attrs["identity"]), started, **numbers)
