"""A directory of checkpoints as a table for people and as a dictionary for machines."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ringmpi.analysis.kept import Kept
from ringmpi.cli.printing import print_uncut
from ringmpi.cli.seconds import titled
from ringmpi.storage.generations import Generation


def show(kept: Kept, console: Console) -> None:
    """Print the generations, and what is wrong last, where it is seen."""
    if kept.generations:
        print_uncut(_table(kept), console)
    for note in kept.notes:
        console.print(note)
    for number, damage in kept.damage.items():
        for problem in damage:
            console.print(Text(f"generation {number}: {problem}", style="bold red"))
    console.print(_verdict(kept))


def _table(kept: Kept) -> Table:
    table = titled(f"{kept.directory}: checkpoints of a run that has not ended")
    for name in ("generation", "created", "pass", "ranks", "pairs attended", "runs", "bytes"):
        table.add_column(name, justify="left" if name in ("created", "pass") else "right")
    for generation in kept.generations:
        table.add_row(str(generation.number), *_cells(generation))
    return table


def as_dict(kept: Kept) -> dict[str, Any]:
    """The same, JSON-able, with all of the manifests but the files."""
    return {
        "directory": str(kept.directory),
        "kind": "ringmpi-checkpoints",
        "newest": kept.newest,
        "generations": [
            {
                "generation": generation.number,
                "manifest": generation.manifest.model_dump(mode="json", exclude={"files", "absorbed"})
                if generation.manifest
                else None,
                "ranks": len(generation.manifest.files) if generation.manifest else 0,
                "bytes": _bytes(generation),
                "problems": kept.damage[generation.number],
            }
            for generation in kept.generations
        ],
        "notes": kept.notes,
        "checked": kept.checked,
    }


def _cells(generation: Generation) -> list[str]:
    manifest = generation.manifest
    if manifest is None:
        return ["", "", "", "", "", ""]
    asked = manifest.identity["pairs_asked"]
    pairs = ", ".join(f"{count:,} of {asked:,} {stage}" for stage, count in manifest.progress["pairs"].items())
    ranks, runs = len(manifest.files), len(manifest.attempts)
    return [manifest.created, manifest.progress["stage"], f"{ranks:,}", pairs, f"{runs:,}", f"{_bytes(generation):,}"]


def _bytes(generation: Generation) -> int:
    return sum(file.bytes for file in generation.manifest.files) if generation.manifest else 0


def _verdict(kept: Kept) -> str:
    if not kept.generations:
        return f"{kept.directory}: no checkpoint and no array is in it: there is no unfinished run here."
    if kept.newest is None:
        unfinished = all(generation.unfinished for generation in kept.generations)
        then = (
            "ringmpi run --resume starts from the beginning" if unfinished else "repair one, or start over with --force"
        )
        return f"No generation can be used: {then}."
    basis = "its files have the digests that were written" if kept.checked else "--check reads the files too"
    return f"ringmpi run --resume goes on from generation {kept.newest}; {basis}."
