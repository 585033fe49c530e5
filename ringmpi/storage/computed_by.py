"""What computed an output, once every "auto" of its configuration was decided: the group /computed_by.

Outputs that were written before it was recorded lack the group as a whole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ringmpi.numbers import counted
from ringmpi.storage.layout_entries import AttributeLayout, DatasetLayout
from ringmpi.storage.table import write_table

COMPUTED_BY = "/computed_by"
COMPUTED_BY_DATASETS = (
    DatasetLayout(f"{COMPUTED_BY}/backend", ("ranks",), "string", "", "backend by ring position"),
    DatasetLayout(
        f"{COMPUTED_BY}/arithmetic", ("ranks",), "string", "", "kind of core or library that the last bits depend on"
    ),
    DatasetLayout(f"{COMPUTED_BY}/threads", ("ranks",), "int64", "threads", "threads by ring position"),
    DatasetLayout(
        f"{COMPUTED_BY}/node_cores", ("ranks",), "int64", "cores", "cores that the ranks of its node might use together"
    ),
)
COMPUTED_BY_ATTRIBUTES = (
    AttributeLayout(COMPUTED_BY, "schedule", "string", "schedule of the ring that was used"),
    AttributeLayout(COMPUTED_BY, "sharding", "string", "JSON object: queries, keys -> sharding that was used"),
    AttributeLayout(
        COMPUTED_BY,
        "problem",
        "string",
        "JSON object: batch, query_heads, key_heads, head_dim, value_dim, query_length, key_length, mask (in words), "
        "scale",
    ),
)


@dataclass(frozen=True)
class ComputedBy:
    """What is "auto" or left out in a configuration, as it was decided; of the run that wrote the output.

    Attributes
    ----------
    backend, arithmetic : tuple of str [ranks]
        By ring position: "native", and the kind of core or library that its last bits depend on.
    threads, node_cores : tuple of int [ranks]
        Threads of the rank; cores that the ranks of its node might use together.
    schedule : str
    sharding : dict
        "queries" and "keys" -> name.
    problem : dict
        batch, query_heads, key_heads, head_dim, value_dim, query_length, key_length, mask (in words), scale.
    """

    backend: tuple[str, ...]
    arithmetic: tuple[str, ...]
    threads: tuple[int, ...]
    node_cores: tuple[int, ...]
    schedule: str
    sharding: dict[str, str]
    problem: dict[str, Any]

    @property
    def ranks(self) -> set[int]:
        """How many ranks its entries are of."""
        return {len(entries) for entries in (self.backend, self.arithmetic, self.threads, self.node_cores)}

    @property
    def backend_words(self) -> str:
        """Every kind that there was: "native (avx2)"."""
        kinds = dict.fromkeys(zip(self.backend, self.arithmetic, strict=True))
        return ", ".join(name if name == kind else f"{name} ({kind})" for name, kind in kinds)

    @property
    def sharding_words(self) -> str:
        """One name, or two where queries and keys differ."""
        queries, keys = (self.sharding.get(side, "unknown") for side in ("queries", "keys"))
        return queries if queries == keys else f"queries {queries}, keys {keys}"

    @property
    def threads_words(self) -> str:
        """How many per rank."""
        few, most = min(self.threads, default=0), max(self.threads, default=0)
        return f"{counted(most, 'thread') if few == most else f'{few:,} to {most:,} threads'} per rank"

    @property
    def words(self) -> str:
        """All of it but the problem."""
        return f"{self.backend_words}, {self.threads_words}; schedule {self.schedule}, sharding {self.sharding_words}"


def write_computed_by(file: Any, found: ComputedBy) -> None:
    """Write the group /computed_by."""
    group = file.create_group(COMPUTED_BY)
    group.attrs["schedule"] = found.schedule
    group.attrs["sharding"], group.attrs["problem"] = json.dumps(found.sharding), json.dumps(found.problem)
    write_table(group, COMPUTED_BY_DATASETS, found)


def read_computed_by(group: Any) -> ComputedBy:
    """Read what `write_computed_by` wrote; ValueError where it is not what a run writes."""
    backend, arithmetic = (tuple(group[name].asstr()[...].tolist()) for name in ("backend", "arithmetic"))
    sharding, problem = (json.loads(group.attrs[name]) for name in ("sharding", "problem"))
    if not isinstance(sharding, dict) or not isinstance(problem, dict):
        raise ValueError(f"the sharding or the problem in {COMPUTED_BY} is not what a run writes")
    threads, node_cores = (tuple(group[name][...].tolist()) for name in ("threads", "node_cores"))
    return ComputedBy(backend, arithmetic, threads, node_cores, str(group.attrs["schedule"]), sharding, problem)
