"""What a file is, what is in it, and what is wrong with it: any file that ringmpi writes or reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ringmpi.analysis import checks
from ringmpi.analysis.candidates import Triple, triples
from ringmpi.analysis.conformity import departures
from ringmpi.errors import StorageError
from ringmpi.storage.account import Account, BackwardAccount, LateRecord, PairCounts, PassTimeline
from ringmpi.storage.foreign import NPY, NPZ
from ringmpi.storage.inputs import Inputs, file_identity
from ringmpi.storage.layout import (
    ATTRIBUTES,
    BACKWARD_TIMELINE,
    OUTPUT,
    PROVENANCE,
    SCHEMA,
    SCHEMA_ATTRIBUTE,
    SCHEMA_VERSION,
    SHARD_DATASETS,
    SHARD_GRADIENT_DATASETS,
    SHARD_SCHEMA,
    TIMELINE,
    VERSION_ATTRIBUTE,
    AttributeLayout,
    DatasetLayout,
)
from ringmpi.storage.map_layout import MAP_TIMELINE
from ringmpi.storage.record_layout import RECORDED_ROWS, SHARD_RECORD_DATASETS
from ringmpi.storage.results import Results, is_with_gradients, layouts_of
from ringmpi.storage.shards import open_shard
from ringmpi.storage.tree import DATASET, GROUP, Entry, check_readable, read_tree

FOREIGN = "foreign"


@dataclass(frozen=True)
class Contents:
    """A file, looked at.

    Attributes
    ----------
    path : str
    kind : str
        "ringmpi-output", "ringmpi-shard" or "foreign".
    size_bytes : int
    entries : tuple of Entry
        Root first.
    account : Account or None
        What the run says of itself; None if this is no output, or it cannot be read.
    triples : tuple of Triple
        Of a foreign file: what could be query, key and value together.
    notes, problems : tuple of str
        What is worth knowing; what is damaged.
    checked : bool
        Whether the arrays were read.
    """

    path: str
    kind: str
    size_bytes: int
    entries: tuple[Entry, ...]
    account: Account | None
    triples: tuple[Triple, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]
    checked: bool

    @property
    def layouts(self) -> dict[str, DatasetLayout]:
        """What is known of the datasets of this kind of file, by path."""
        return {layout.path: layout for layout in _layouts(self.kind, self.entries)}


def examine(path: Path, *, check: bool = False) -> Contents:
    """Look at a file: HDF5, or anything else that an input may be.

    Parameters
    ----------
    path : path
    check : bool
        Read the arrays too: compare the digests of an output, have HDF5 read all of another file.

    Raises
    ------
    StorageError
        If the file cannot be opened at all.
    """
    is_hdf5 = _is_hdf5(path)
    entries = read_tree(path) if is_hdf5 else tuple(_arrays(path))
    kind, notes = _kind(entries)
    problems = [f"{entry.path}: {entry.problem}" for entry in entries if entry.problem]
    problems += departures(entries, _layouts(kind, entries), _attributes(kind, entries))
    account, unread = None, check
    if kind == SCHEMA and not problems:
        account, problems = _judged_output(path, check)
        unread = check and account is None
        notes += [] if account is None else _of_the_input(account)
    elif kind == SHARD_SCHEMA and not problems:
        problems += _failure(partial(open_shard, path))
    problems += [] if account else _pair_problems(entries)
    if unread:
        problems += _unreadable(path, entries) if is_hdf5 else _failure(partial(_read_all, path, entries))
    return Contents(
        path=str(path),
        kind=kind,
        size_bytes=int(file_identity(path)["size_bytes"]),
        entries=entries,
        account=account,
        triples=tuple(triples(entries)) if kind == FOREIGN else (),
        notes=tuple(notes),
        problems=tuple(problems),
        checked=check,
    )


def _is_hdf5(path: Path) -> bool:
    """Whether to open it as HDF5; the error of HDF5 is the right one for any other file."""
    return not path.is_dir() and path.suffix not in (NPY, NPZ)


def _arrays(path: Path) -> Iterator[Entry]:
    """What an input that is not an HDF5 file holds."""
    with Inputs(path) as inputs:
        yield Entry("/", GROUP)
        for name in inputs.names():
            try:
                array = inputs.array(name)
                yield Entry(f"/{name}", DATASET, array.shape, array.dtype.name)
            except StorageError as error:
                yield Entry(f"/{name}", "array", storage=str(error))


def _kind(entries: tuple[Entry, ...]) -> tuple[str, list[str]]:
    """Which layout a file has, and what is to be said of that."""
    schema, version = (entries[0].attributes.get(name) for name in (SCHEMA_ATTRIBUTE, VERSION_ATTRIBUTE))
    if schema in (SCHEMA, SHARD_SCHEMA) and version not in (None, SCHEMA_VERSION):
        return FOREIGN, [
            f"{schema} of layout version {version}; this ringmpi knows version {SCHEMA_VERSION}, so it is shown like "
            f"any HDF5 file and not checked. Use the ringmpi that wrote it."
        ]
    if schema == SHARD_SCHEMA:
        return SHARD_SCHEMA, [
            "rows of one rank, which the run that wrote them has not merged. It is still at work, it was stopped (run "
            "again), or its output is virtual and refers to them."
        ]
    if schema == SCHEMA or {OUTPUT, PROVENANCE, TIMELINE} <= {entry.path for entry in entries}:
        return SCHEMA, []
    return FOREIGN, ["not written by ringmpi: shown as it is, not checked."]


def _layouts(kind: str, entries: Iterable[Entry]) -> tuple[DatasetLayout, ...]:
    """The datasets that a file of this kind must have: those of gradients where it has any of them."""
    paths = {entry.path for entry in entries}
    if kind == SHARD_SCHEMA:
        recorded = any(path in paths for path in RECORDED_ROWS)
        return (
            *SHARD_DATASETS,
            *SHARD_GRADIENT_DATASETS * is_with_gradients(paths),
            *SHARD_RECORD_DATASETS * recorded,
        )
    return layouts_of(paths)[0] if kind == SCHEMA else ()


def _attributes(kind: str, entries: Iterable[Entry]) -> tuple[AttributeLayout, ...]:
    if kind == SHARD_SCHEMA:
        return tuple(layout for layout in ATTRIBUTES if layout.path == "/")
    return layouts_of({entry.path for entry in entries})[1] if kind == SCHEMA else ()


def _judged_output(path: Path, check: bool) -> tuple[Account | None, list[str]]:
    """The account of an output that has all that it needs, and what its numbers say against it."""
    try:
        with Results(path) as results:
            made = [checks.shards(results), *([checks.key_shards(results)] if results.gradients else [])]
            if check:
                made += [checks.digest(array) for array in results.arrays]
            problems = [made.text for made in made if not made.passed]
            account = results.account
            forward, backward = account.earlier_pairs
            problems += _inexact("", account.counts, account.timeline, forward)
            if account.late is not None and account.late.timeline is not None:
                problems += _inexact("map pass ", account.late, account.late.timeline, 0)
            if account.backward is not None:
                problems += _inexact("backward pass ", account.backward, account.backward.timeline, backward)
            return account, problems
    except StorageError as error:
        return None, [str(error)]


def _inexact(
    which: str, counts: PairCounts | BackwardAccount | LateRecord, timeline: PassTimeline, earlier: int
) -> list[str]:
    """What is wrong with the pairs of a pass; `earlier`: those of the runs before."""
    by_steps = int(timeline.pairs_attended.sum(dtype=object)) + earlier
    if counts.pairs_asked == counts.pairs_attended == by_steps:
        return []
    return [
        f"NOT EXACT: {which}attended {counts.pairs_attended:,} pairs (sum over ranks and ring steps {by_steps:,}) "
        f"of {counts.pairs_asked:,} asked"
    ]


def _pair_problems(entries: tuple[Entry, ...]) -> list[str]:
    """The same from the attributes, where the account cannot be read."""
    found = []
    for group, which in ((TIMELINE, ""), (MAP_TIMELINE, "map pass "), (BACKWARD_TIMELINE, "backward pass ")):
        counts = next((entry.attributes for entry in entries if entry.path == group), {})
        asked, attended = counts.get("pairs_asked"), counts.get("pairs_attended")
        found += [] if asked == attended else [f"NOT EXACT: {which}attended {attended} pairs of {asked} asked"]
    return found


def _of_the_input(account: Account) -> list[str]:
    """What became of the input since."""
    recorded = account.provenance.input_identity
    path = str(recorded["path"])
    try:
        now = file_identity(path)
    except StorageError:
        return [f"input {path} is missing now"]
    if all(now[key] == recorded[key] for key in ("size_bytes", "mtime_ns")):
        return [f"input {path} is there, unchanged"]
    return [f"input {path} has a different size or time from what the run saw: ringmpi verify tells whether it matters"]


def _unreadable(path: Path, entries: tuple[Entry, ...]) -> list[str]:
    """Datasets that HDF5 cannot read to their end, one message each."""
    whole = [entry for entry in entries if entry.kind == DATASET and not entry.problem]
    return [problem for entry in whole for problem in _failure(partial(check_readable, path, entry.path))]


def _read_all(path: Path, entries: tuple[Entry, ...]) -> None:
    """Read the arrays of an input that is not an HDF5 file."""
    with Inputs(path) as inputs:
        for entry in entries:
            if entry.kind == DATASET:
                for _ in inputs.array(entry.path.strip("/")).slabs_in_order():
                    pass


def _failure(action: Callable[[], Any]) -> list[str]:
    try:
        action()
    except StorageError as error:
        return [str(error)]
    return []
