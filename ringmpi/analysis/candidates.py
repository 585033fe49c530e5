"""Which arrays of a file could be query, key and value: for people who have a file and no RUN.toml yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ringmpi.core.dtypes import SUPPORTED
from ringmpi.core.shapes import head_shape
from ringmpi.errors import ShapeError
from ringmpi.storage.tree import DATASET, Entry

NAMES = {"query": ("q", "query", "queries"), "key": ("k", "key", "keys"), "value": ("v", "value", "values")}


@dataclass(frozen=True)
class Triple:
    """Three arrays of one group with the names of query, key and value.

    Attributes
    ----------
    query, key, value : str
        Paths, as [input] takes them.
    text : str
        What they hold, or why they do not fit together.
    fits : bool
    """

    query: str
    key: str
    value: str
    text: str
    fits: bool


def could_be_input(entry: Entry) -> bool:
    """Whether an array has the dtype and the number of axes of query, key or value."""
    dtypes = {dtype.name for dtype in SUPPORTED}
    return entry.kind == DATASET and len(entry.shape or ()) in (3, 4) and entry.dtype.split(" ")[0] in dtypes


def triples(entries: Iterable[Entry]) -> Iterator[Triple]:
    """The query, key and value of every group that has all three, by their names; groups in the order of the file."""
    groups: dict[str, dict[str, Entry]] = defaultdict(dict)
    for entry in filter(could_be_input, entries):
        stem = entry.name.removesuffix(".npy").lower()
        for role, names in NAMES.items():
            if stem in names:
                groups[entry.parent].setdefault(role, entry)
    for found in groups.values():
        if len(found) == len(NAMES):
            paths = {role: found[role].path.strip("/") for role in NAMES}
            text, fits = _judged(*(found[role] for role in NAMES))
            yield Triple(**paths, text=text, fits=fits)


def _judged(query: Entry, key: Entry, value: Entry) -> tuple[str, bool]:
    shapes = [entry.shape or () for entry in (query, key, value)]
    try:
        heads = head_shape(*shapes)
    except ShapeError as error:
        return str(error), False
    dtypes = {entry.dtype.split(" ")[0] for entry in (query, key, value)}
    if len(dtypes) > 1:
        return f"query, key and value have dtypes {', '.join(sorted(dtypes))}; all must be the same.", False
    batch = f"batch {heads.batch}, " if heads.batch > 1 else ""
    text = (
        f"{batch}{heads.query_heads} query heads on {heads.key_heads} key heads, {shapes[0][-2]:,} queries, "
        f"{shapes[1][-2]:,} keys, head_dim {heads.head_dim}, value_dim {heads.value_dim}, {query.dtype}"
    )
    return "; ".join([text, *heads.doubts(shapes[0][-2], shapes[1][-2])]), True
