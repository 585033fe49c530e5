"""Who ran what, when and where, and whether it was exact: the first page of a report."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from ringmpi.analysis.opened import OPTIONS, Source, key_length_of, opened
from ringmpi.analysis.options_used import options_of
from ringmpi.analysis.tables import Cell, Table
from ringmpi.analysis.timelines import passes_of
from ringmpi.storage.account import Account
from ringmpi.storage.computed_by import ComputedBy
from ringmpi.storage.layout import GRAD_KEY

IN_TABLE = (
    *("path", "command_line", "started", "finished", "seconds", "ranks", "nodes", "batch", "heads"),
    *("query_length", "key_length", "key_heads", "head_dim", "value_dim", "dtype"),
    *("pairs_asked", "pairs_attended", "attempts"),
)


@dataclass(frozen=True)
class Summary:
    """A run, as its output describes it.

    Attributes
    ----------
    path : str
    command_line : str
    started, finished : str
        ISO 8601 with zone.
    seconds : float
        From one to the other, reading, writing and verifying included; whole seconds. nan where a time cannot be read.
    hosts : tuple of str [ranks]
        By ring position.
    ring_order : tuple of int [ranks]
        Launch rank at each ring position.
    versions, options, input : dict
        Program or library -> version; "table.key" -> value, defaults filled in; what is known of the input file.
    batch, heads, query_length, value_dim : int
        Of the output. `heads` are query heads.
    key_length, key_heads, head_dim : int or None
        None where the output does not say: those of earlier versions do not without gradients or recorded keys.
    dtype : str
        Of the output.
    pairs_asked, pairs_attended : int
        In the forward pass, over batch and query heads.
    exact : bool
        Whether these are equal, in all passes.
    pass_seconds : dict
        "forward", "map", "backward", as far as there were: seconds of the rank that took longest, attending and
        waiting. Of an output of several attempts those of the last one alone, which had part of the pairs.
    attempts : int
        Runs that led to this output, each resuming where the previous one was stopped.
    recorded : tuple of str
        Datasets of /record that there are.
    computed_by : ComputedBy or None
        Backend, threads, schedule, shardings and scale as they were decided; None in outputs of earlier versions.
    """

    path: str
    command_line: str
    started: str
    finished: str
    seconds: float
    hosts: tuple[str, ...]
    ring_order: tuple[int, ...]
    versions: dict[str, str]
    options: dict[str, Any]
    input: dict[str, str | int]
    batch: int
    heads: int
    query_length: int
    value_dim: int
    key_length: int | None
    key_heads: int | None
    head_dim: int | None
    dtype: str
    pairs_asked: int
    pairs_attended: int
    exact: bool
    pass_seconds: dict[str, float]
    attempts: int
    recorded: tuple[str, ...]
    computed_by: ComputedBy | None

    @property
    def ranks(self) -> int:
        """How many."""
        return len(self.hosts)

    @property
    def nodes(self) -> int:
        """On how many hosts."""
        return len(set(self.hosts))

    @property
    def cores(self) -> int | None:
        """Threads of all ranks; None where the output does not say, or GPUs have computed it."""
        found = self.computed_by
        return None if found is None or "cuda" in found.backend else sum(found.threads)

    @property
    def part_timed(self) -> str:
        """Whose times there are, where they are not those of all pairs: "the last of 3 attempts"; else empty."""
        return f"the last of {self.attempts:,} attempts" if self.attempts > 1 else ""

    @property
    def mask(self) -> str:
        """In words; of outputs of earlier versions as the configuration has it."""
        if self.computed_by is not None and "mask" in self.computed_by.problem:
            return str(self.computed_by.problem["mask"])
        return str(self.options.get("attention.mask", "full"))

    def table(self) -> Table:
        """One row for each thing that is known: its name and its value."""
        rows: list[tuple[Cell, ...]] = []
        rows += [(name, value) for name in IN_TABLE if (value := getattr(self, name)) is not None]
        rows += _computed_by(self.computed_by)
        rows.append(("exact", "yes" if self.exact else "NO"))
        rows += [(f"{name}_pass_s", seconds) for name, seconds in self.pass_seconds.items()]
        for what, table in (("version", self.versions), ("option", self.options), ("input", self.input)):
            rows += [(f"{what} {name}", str(value)) for name, value in table.items()]
        rows += [(f"rank {rank}", host) for rank, host in enumerate(self.hosts)]
        return Table(("name", "value"), rows)


def summary(source: Source) -> Summary:
    """What an output says about the run that wrote it.

    Parameters
    ----------
    source : path or Results

    Raises
    ------
    StorageError
        If the file is missing, damaged, or not a ringmpi output.
    """
    with opened(source) as results:
        account, (batch, heads, length, value_dim) = results.account, results.output.full_shape
        provenance, counts, key = account.provenance, account.counts, results.gradients.get(GRAD_KEY)
        known = {} if account.computed_by is None else account.computed_by.problem
        key_length = known.get("key_length")
        return Summary(
            path=str(results.path),
            command_line=provenance.command_line,
            started=provenance.started,
            finished=provenance.finished,
            seconds=_between(provenance.started, provenance.finished),
            hosts=provenance.hosts,
            ring_order=provenance.ring_order,
            versions=dict(provenance.versions),
            options=options_of(results),
            input=dict(provenance.input_identity),
            batch=batch,
            heads=heads,
            query_length=length,
            value_dim=value_dim,
            key_length=key_length_of(results) if key_length is None else key_length,
            key_heads=known.get("key_heads") if key is None else key.full_shape[1],
            head_dim=known.get("head_dim") if key is None else key.full_shape[3],
            dtype=results.output.dtype.name,
            pairs_asked=counts.pairs_asked,
            pairs_attended=counts.pairs_attended,
            exact=_is_exact(account),
            pass_seconds=pass_seconds(account),
            attempts=1 if account.attempts is None else len(account.attempts.pairs),
            recorded=tuple(name for name in OPTIONS if results.recorded_array(name) is not None),
            computed_by=account.computed_by,
        )


def _computed_by(found: ComputedBy | None) -> list[tuple[Cell, ...]]:
    """Lines of the table: what was decided by "auto"."""
    if found is None:
        return []
    shardings = [(f"{side}_sharding", name) for side, name in found.sharding.items()]
    threads = [(f"threads of rank {rank}", count) for rank, count in enumerate(found.threads)]
    scale = [(name, str(found.problem[name])) for name in ("mask", "scale") if name in found.problem]
    return [("backend", found.backend_words), ("schedule", found.schedule), *shardings, *scale, *threads]


def pass_seconds(account: Account) -> dict[str, float]:
    """Of each pass, the seconds of the rank that took longest, attending and waiting; of the last attempt alone."""
    return {
        name: float(np.sum(timeline.attend_seconds + timeline.wait_seconds, axis=1).max(initial=0))
        for name, timeline in passes_of(account).items()
    }


def _is_exact(account: Account) -> bool:
    passes = (account.counts, account.late, account.backward)
    return all(counts is None or counts.pairs_asked == counts.pairs_attended for counts in passes)


def _between(started: str, finished: str) -> float:
    try:
        return (datetime.fromisoformat(finished) - datetime.fromisoformat(started)).total_seconds()
    except (ValueError, TypeError):
        return float("nan")
