"""The checks of `ringmpi verify`, one function each: a comparison, and the sentence that says what it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ringmpi.analysis.certificate import Check
from ringmpi.analysis.recompute import Judged
from ringmpi.core.shapes import HeadShape
from ringmpi.core.slices import total_pairs
from ringmpi.core.tolerance import has_wider_reference
from ringmpi.errors import StorageError
from ringmpi.question import Question
from ringmpi.storage.digest import dataset_digest
from ringmpi.storage.inputs import file_identity
from ringmpi.storage.layout import GRAD_KEY, KEY_SIDE
from ringmpi.storage.merge import check_cover, dtype_of
from ringmpi.storage.records import BackwardRecord, RunRecord
from ringmpi.storage.results import Results
from ringmpi.storage.source import ArraySource

DIGITS_SHOWN = 16
POSITIONS_SHOWN = 5


def digest(array: ArraySource) -> Check:
    """The bits of a dataset are those that were written."""
    recorded, found = str(array.recorded_digest), dataset_digest(array)
    name, facts = f"digest of {array.name}", {"recorded": recorded, "found": found}
    if found == recorded:
        return Check(name, True, f"{array.name} has the bits that were written, blake2b {found[:DIGITS_SHOWN]}", facts)
    was = f"blake2b {found[:DIGITS_SHOWN]}, recorded {recorded[:DIGITS_SHOWN]}"
    return Check(name, False, f"{array.name} was changed after it was written, {was}", facts)


def shards(results: Results) -> Check:
    """Every row was held by exactly one rank."""
    length, ranks = results.output.length, len(results.shards)
    try:
        check_cover(results.shards, length)
    except StorageError as error:
        return Check("shards", False, f"the shards of {ranks} ranks do not make up {length:,} rows ({error})")
    return Check("shards", True, f"rows {length:,}, each held by one of {ranks} ranks")


def key_shards(results: Results) -> Check:
    """Every key, and so every row of its gradients, was held by exactly one rank."""
    length, ranks = results.gradients[GRAD_KEY].length, len(results.key_shards)
    try:
        check_cover(results.key_shards, length)
    except StorageError as error:
        return Check("key shards", False, f"the key shards of {ranks} ranks do not make up {length:,} keys ({error})")
    return Check("key shards", True, f"keys {length:,}, each held by one of {ranks} ranks")


def identity(
    path: Path, recorded: Mapping[str, str | int], contents: Callable[[], Mapping[str, str]], *, always: bool = False
) -> Check:
    """The input is the file that the run read, or holds the same numbers.

    contents : function () -> name of an array and its checksum now; called where size or time of change differ.
    always : call it in any case.
    """
    try:
        found = file_identity(path)
    except StorageError as error:
        text = f"input {path} is gone ({error}) Where it lies elsewhere now, say so with --input PATH"
        return Check("input", False, text, {"recorded": dict(recorded)})
    facts: dict[str, Any] = {"recorded": dict(recorded), "found": found}
    same = all(found[key] == recorded[key] for key in ("size_bytes", "mtime_ns"))
    if same and not always:
        return Check("input", True, f"input {path} is the file that the run read", facts)
    facts["contents"] = held = dict(contents())
    checksums = {name: recorded.get(name) for name in held}
    if None in checksums.values():
        held = {}
    if held and held == checksums:
        how = "holds" if same else "was moved or touched, and holds"
        return Check("input", True, f"input {path} {how} the numbers that the run read", facts)
    if held:
        changed = " and ".join(name for name in held if held[name] != checksums[name])
        return Check("input", False, f"input {path} changed since the run read it: other numbers in {changed}", facts)
    if same:  # a run that did not read all of it
        return Check("input", True, f"input {path} has the size and time of change that the run saw", facts)
    now, then = (f"{int(it['size_bytes']):,} bytes, changed {_time(int(it['mtime_ns']))}" for it in (found, recorded))
    return Check("input", False, f"input {path} is not the file that the run read ({now}; the run read {then})", facts)


def _time(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(sep=" ", timespec="microseconds")


def pairs(question: Question, record: RunRecord) -> Check:
    """Pairs of the mask, asked, attended and summed over ring steps are one number."""
    heads, counts = question.problem.heads, record.counts
    of_mask = total_pairs(question.problem.slices)
    all_heads = of_mask * heads.query_slabs
    by_steps = int(record.timeline.pairs_attended.sum(dtype=object)) + record.earlier_pairs[0]
    facts = {
        "pairs_of_mask": of_mask,
        "query_slabs": heads.query_slabs,
        "pairs_asked": counts.pairs_asked,
        "pairs_attended": counts.pairs_attended,
        "pairs_attended_by_steps": by_steps,
    }
    if all_heads == counts.pairs_asked == counts.pairs_attended == by_steps and counts.query_slabs == heads.query_slabs:
        return Check("pairs", True, f"pairs attended {of_mask:,} of {of_mask:,} x {_heads(heads)}", facts)
    text = (
        f"pairs attended {counts.pairs_attended:,} (sum over ring steps {by_steps:,}), asked {counts.pairs_asked:,} "
        f"over {counts.query_slabs} heads, but the mask has {of_mask:,} x {_heads(heads)} = {all_heads:,}"
    )
    return Check("pairs", False, text, facts)


def backward_pairs(question: Question, record: BackwardRecord, earlier: int) -> Check:
    """The backward pass has met each pair of the mask once more, or twice where both sides travelled.

    earlier : pairs of the runs before the one that the timeline is of
    """
    problem = question.problem
    of_mask = total_pairs(problem.slices) * problem.heads.query_slabs * problem.schedule.backward_passes
    by_steps = int(record.timeline.pairs_attended.sum(dtype=object)) + earlier
    counts = {"pairs_asked": record.pairs_asked, "pairs_attended": record.pairs_attended}
    facts = {"pairs_of_mask": of_mask, **counts, "pairs_attended_by_steps": by_steps, "travel": record.travel}
    text = f"backward pass ({record.travel} travelled): pairs attended {record.pairs_attended:,} of {of_mask:,}"
    if of_mask == record.pairs_asked == record.pairs_attended == by_steps:
        return Check("pairs of the backward pass", True, text, facts)
    text += f", asked {record.pairs_asked:,}, sum over ring steps {by_steps:,}"
    return Check("pairs of the backward pass", False, text, facts)


def _heads(heads: HeadShape) -> str:
    return f"{heads.query_heads} heads" + (f" x batch {heads.batch}" if heads.batch > 1 else "")


def shape(question: Question, results: Results) -> Check:
    """The arrays have the shape and dtypes that the input asks for."""
    dtype = question.problem.dtype
    needed = {name: (shape, dtype_of(name, dtype)) for name, shape in question.shapes.items()}
    needed |= question.second_shapes
    found = {array.name: (array.shape, array.dtype) for array in results.arrays}
    if found == needed:
        return Check("shape", True, _shapes(found))
    return Check("shape", False, f"{_shapes(found)}, but the input and the options ask for {_shapes(needed)}")


def _shapes(arrays: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> str:
    return ", ".join(f"{name.strip('/')} {shape} {dtype}" for name, (shape, dtype) in arrays.items())


def rows(
    judged: Judged, question: Question, *, changed: bool, basis: str = "", of: tuple[int, str] | None = None
) -> Check:
    """The recomputed rows are within tolerance.

    changed : the digest of this array says that something else is not
    basis : what was not recomputed
    of : how many rows there are, and what they are called, where they are not those of queries or keys
    """
    worst = judged.worst
    length, noun = of or (question.k.length if judged.name in KEY_SIDE else question.q.length, "rows")
    facts = {
        "rows": judged.rows,
        "worst_error": worst.error,
        "permitted_error": worst.bound,
        "worst_ratio": worst.ratio,
        "worst_at": list(worst.where),
        "wrong_rows": len(judged.wrong),
        "wrong_positions": list(judged.wrong[:POSITIONS_SHOWN]),
    }
    text = (
        f"{judged.name}: {judged.rows:,} of {length:,} {noun} recomputed, worst error {worst.error:.3g} where "
        f"{worst.bound:.3g} is permitted (ratio {worst.ratio:.2f}) at {_place(worst.where)}"
    )
    if not judged.wrong:
        hidden = " smaller than the tolerance" if judged.rows == length else ", if any, in rows not recomputed"
        text += f"; the change is{hidden}" if changed else ""
        text += basis
        text += "" if has_wider_reference(question.problem.dtype) else "; judged by float64, no wider dtype is here"
        return Check(f"rows of {judged.name}", True, text, facts)
    text += (
        f", found {worst.found:.9g}, should be {worst.reference:.9g}; "
        f"rows beyond tolerance: {len(judged.wrong):,}, at positions {_some(judged.wrong)}"
    )
    return Check(f"rows of {judged.name}", False, text, facts)


def _place(where: Sequence[int]) -> str:
    """Index of an element in words."""
    batch, *rest = zip(("batch", "head", "position", "channel"), where, strict=False)
    named = rest if where[0] == 0 else [batch, *rest]
    return ", ".join(f"{name} {index}" for name, index in named)


def _some(positions: Sequence[int]) -> str:
    more = ", ..." if len(positions) > POSITIONS_SHOWN else ""
    return ", ".join(map(str, positions[:POSITIONS_SHOWN])) + more
