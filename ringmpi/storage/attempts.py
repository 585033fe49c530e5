"""The runs that together came to an output, where their state was kept: on how many ranks, and the pairs of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from ringmpi.core.stages import FORWARD, MAP
from ringmpi.storage.layout import ATTEMPTS, ATTEMPTS_DATASETS


@dataclass(frozen=True)
class AttemptsRecord:
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
    def of(identity: dict[str, Any], attempts: Sequence[Mapping[str, Any]]) -> AttemptsRecord:
        """From what manifests say of each: started, ranks, and pairs by stage."""
        pairs: list[dict[str, int]] = [attempt["pairs"] for attempt in attempts]
        return AttemptsRecord(
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


def write_attempts(file: Any, attempts: AttemptsRecord) -> None:
    """Write the group /attempts."""
    group = file.create_group(ATTEMPTS)
    group.attrs["identity"] = json.dumps(attempts.identity)
    for layout in ATTEMPTS_DATASETS:
        name = layout.path.rpartition("/")[2]
        text = layout.dtype == "string"
        values = np.array(getattr(attempts, name), object if text else np.int64)
        dataset = group.create_dataset(name, data=values, dtype=h5py.string_dtype() if text else "<i8")
        dataset.attrs.update({"axes": ", ".join(layout.axes), "unit": layout.unit, "meaning": layout.meaning})


def read_attempts(group: Any) -> AttemptsRecord:
    """Read what `write_attempts` wrote."""
    numbers = {name: tuple(group[name][...].tolist()) for name in ("ranks", "pairs", "pairs_backward")}
    started = tuple(group["started"].asstr()[...].tolist())
    return AttemptsRecord(json.loads(group.attrs["identity"]), started, **numbers)
