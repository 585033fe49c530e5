"""The contents of a file as a tree for people and as a dictionary for machines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ringmpi.analysis.candidates import could_be_input
from ringmpi.analysis.conformity import axes_of
from ringmpi.analysis.contents import FOREIGN, Contents
from ringmpi.cli.printing import grid, print_uncut
from ringmpi.cli.seconds import rank_table
from ringmpi.storage.account import BackwardAccount
from ringmpi.storage.layout import (
    ATTRIBUTES,
    BACKWARD_TIMELINE,
    PROVENANCE,
    SCHEMA,
    SCHEMA_VERSION,
    SHARD_SCHEMA,
    TIMELINE,
    TRAVEL_ATTRIBUTE,
)
from ringmpi.storage.map_layout import MAP_TIMELINE
from ringmpi.storage.tree import GROUP, Entry

TITLES = {
    SCHEMA: f"output of ringmpi, layout version {SCHEMA_VERSION}, ",
    SHARD_SCHEMA: f"shard of an output of ringmpi, layout version {SCHEMA_VERSION}, ",
    FOREIGN: "",
}
CHILDREN_SHOWN = 40
ATTRIBUTE_LETTERS = 60
HOSTS_SHOWN = 8
NOT_SAID = "not recorded: the version that wrote the output did not record it"


def show(contents: Contents, console: Console) -> None:
    """Print all of it: the tree, where it comes from, and what is wrong last, where it is seen."""
    console.print(
        Text(f"{_printable(contents.path)}: {TITLES[contents.kind]}{contents.size_bytes:,} bytes", style="bold")
    )
    for note in contents.notes:
        console.print(_printable(note))
    console.print(_tree(contents), soft_wrap=False)
    if contents.kind == SCHEMA:
        console.print(_provenance(contents))
    if contents.account is not None:
        print_uncut(rank_table(contents.account), console)
    if contents.kind == FOREIGN:
        for line in _inputs(contents):
            console.print(_printable(line))
    for problem in contents.problems:
        console.print(Text(f"DAMAGED: {_printable(problem)}", style="bold red"))
    if not contents.problems:
        console.print(_verdict(contents))


def as_dict(contents: Contents) -> dict[str, Any]:
    """The same, JSON-able, with every attribute."""
    layouts = contents.layouts
    entries = []
    for entry in contents.entries:
        layout = layouts.get(entry.path)
        known = {"axes": axes_of(entry, layout), "unit": layout.unit, "meaning": layout.meaning} if layout else {}
        entries.append(asdict(entry) | known)
    account = contents.account
    return {
        "file": contents.path,
        "kind": contents.kind,
        "size_bytes": contents.size_bytes,
        "entries": entries,
        "pairs": asdict(account.counts) if account else None,
        "backward": _backward(account.backward) if account and account.backward else None,
        "provenance": asdict(account.provenance) if account else None,
        "computed_by": asdict(account.computed_by) if account and account.computed_by else None,
        "attempts": asdict(account.attempts) if account and account.attempts else None,
        "could_be_input": [entry.path.strip("/") for entry in _candidates(contents)],
        "inputs": [asdict(triple) for triple in contents.triples],
        "notes": contents.notes,
        "problems": contents.problems,
        "checked": contents.checked,
    }


def _backward(backward: BackwardAccount) -> dict[str, Any]:
    counts = {"pairs_asked": backward.pairs_asked, "pairs_attended": backward.pairs_attended}
    return {**counts, "bytes_sent": int(backward.timeline.bytes_sent.sum()), "travel": backward.travel}


def _tree(contents: Contents) -> Tree:
    """Groups and datasets as they lie in each other; of a group with very many things, the first."""
    root = Tree(_label(contents.entries[0], contents))
    nodes, inside = {"/": root}, dict.fromkeys((entry.parent for entry in contents.entries), 0)
    for entry in contents.entries:
        if entry.path == "/" or entry.parent not in nodes:
            continue
        inside[entry.parent] += 1
        if inside[entry.parent] <= CHILDREN_SHOWN:
            node = nodes[entry.parent].add(_label(entry, contents))
            if entry.kind == GROUP:
                nodes[entry.path] = node
    for path, count in inside.items():
        if count > CHILDREN_SHOWN and path in nodes:
            nodes[path].add(Text(f"and {count - CHILDREN_SHOWN:,} more (--json lists all)"))
    return root


def _label(entry: Entry, contents: Contents) -> Text:
    return Text("\n").join(Text(_printable(line)) for line in _lines(entry, contents))


def _lines(entry: Entry, contents: Contents) -> Iterator[str]:
    """One object: a line of facts, one of meaning, and what is not as it should be."""
    layout = contents.layouts.get(entry.path)
    unit = layout.unit if layout else str(entry.attributes.get("unit", ""))
    meaning = layout.meaning if layout else str(entry.attributes.get("meaning", ""))
    kind = "" if entry.kind in ("dataset", "group") else entry.kind
    facts = [entry.dtype, _shape(entry, contents), unit, entry.storage, kind]
    yield "  ".join([entry.name, *filter(None, facts)])
    if meaning:
        yield f"  {meaning}"
    if contents.kind == FOREIGN:
        for name, value in entry.attributes.items():
            if name not in ("unit", "meaning"):
                yield f"  @{name} = {_short(value)}"
    if entry.problem:
        yield f"  DAMAGED: {entry.problem}"


def _shape(entry: Entry, contents: Contents) -> str:
    """Lengths of all axes, with their names where they are known."""
    if entry.shape is None:
        return ""
    if not entry.shape:
        return "one value"
    layout = contents.layouts.get(entry.path)
    axes = axes_of(entry, layout) if layout else ()
    if len(axes) != len(entry.shape):
        return str(list(entry.shape))
    named = (f"({axis})" if " " in axis else f"{axis} {n}" for axis, n in zip(axes, entry.shape, strict=True))
    return f"[{', '.join(named)}]"


def _provenance(contents: Contents) -> Table:
    """Where an output comes from, as far as its attributes can be read."""
    attributes = {entry.path: entry.attributes for entry in contents.entries}
    table = grid(names="none")
    found = attributes.get(PROVENANCE, {})
    known = [layout.name for layout in ATTRIBUTES if layout.path == PROVENANCE and layout.name in found]
    for name in dict.fromkeys([*known, *found]):
        for line, text in enumerate(_readable(found[name])):
            table.add_row("" if line else name.replace("_", " "), Text(_printable(text)))
    if contents.account is not None:
        hosts = contents.account.provenance.hosts
        nodes = list(dict.fromkeys(hosts))
        more = f" and {len(nodes) - HOSTS_SHOWN:,} more" if len(nodes) > HOSTS_SHOWN else ""
        table.add_row("ranks", Text(f"{len(hosts):,} on {', '.join(nodes[:HOSTS_SHOWN])}{more}"))
        computed_by = contents.account.computed_by
        table.add_row("computed by", Text(_printable(computed_by.words) if computed_by else NOT_SAID))
        if (placement := contents.account.placement) is not None:
            table.add_row("placement", Text(_printable(placement.words)))
        if (attempts := contents.account.attempts) is not None:
            table.add_row("attempts", Text(attempts.words))
    for group, name in ((TIMELINE, "pairs"), (MAP_TIMELINE, "map pass"), (BACKWARD_TIMELINE, "backward")):
        counts = attributes.get(group, {})
        asked, attended = counts.get("pairs_asked"), counts.get("pairs_attended")
        if isinstance(asked, int) and isinstance(attended, int):
            exact = "exact" if asked == attended else "NOT EXACT"
            travel = f"{counts[TRAVEL_ATTRIBUTE]} travelled; " if TRAVEL_ATTRIBUTE in counts else ""
            table.add_row(name, Text(f"{travel}attended {attended:,} of {asked:,} asked: {exact}"))
    return table


def _readable(value: Any) -> list[str]:
    """An attribute as lines: a JSON object by its entries, a text by its lines."""
    try:
        parsed = json.loads(value)
    except (TypeError, ValueError):
        return str(value).splitlines() or [""]
    return [f"{key}: {entry}" for key, entry in parsed.items()] if isinstance(parsed, dict) else [str(value)]


def _inputs(contents: Contents) -> Iterator[str]:
    """What in a foreign file could be an input, and what to write into RUN.toml for it."""
    names = [entry.path.strip("/") for entry in _candidates(contents)]
    if not names:
        yield (
            "No array in it could be query, key or value: these are [(batch,) heads, length, head_dim] of float16, "
            "bfloat16, float32 or float64."
        )
        return
    more = f" and {len(names) - CHILDREN_SHOWN:,} more" if len(names) > CHILDREN_SHOWN else ""
    yield f"Could be query, key or value: {', '.join(names[:CHILDREN_SHOWN])}{more}"
    for triple in contents.triples[:CHILDREN_SHOWN]:
        yield f"{triple.query}, {triple.key}, {triple.value}: {triple.text}"
    first = next((triple for triple in contents.triples if triple.fits), None)
    if first is not None:
        file, query, key, value = map(json.dumps, (contents.path, first.query, first.key, first.value))
        yield "For RUN.toml:"
        yield f"  [input]\n  file = {file}\n  query = {query}\n  key = {key}\n  value = {value}"


def _candidates(contents: Contents) -> list[Entry]:
    return [entry for entry in contents.entries if contents.kind == FOREIGN and could_be_input(entry)]


def _verdict(contents: Contents) -> str:
    if contents.checked:
        digests = " and has the digests that were written" if contents.kind == SCHEMA else ""
        return f"No damage found: every array can be read{digests}."
    return "No damage found in the headers; --check reads the arrays too."


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= ATTRIBUTE_LETTERS else f"{text[:ATTRIBUTE_LETTERS]}..."


def _printable(text: str) -> str:
    """Without characters that a terminal would obey."""
    return "".join(letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in text)
