"""The checks of `ringmpi verify`, one function each: a comparison, and the sentence that says what it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ringmpi.analysis.certificate import Check
from ringmpi.analysis.recompute import Judged
from ringmpi.asking.question import Question
from ringmpi.core.shapes import HeadShape
from ringmpi.core.slices import total_pairs
from ringmpi.core.stages import BACKWARD, MAP
from ringmpi.core.tolerance import has_wider_reference
from ringmpi.errors import StorageError
from ringmpi.storage.account import Account, BackwardAccount, LateRecord, PairCounts, PassTimeline
from ringmpi.storage.digest import dataset_digest
from ringmpi.storage.inputs import file_identity
from ringmpi.storage.layout import GRAD_KEY, KEY_SIDE
from ringmpi.storage.merge import check_cover, dtype_of
from ringmpi.storage.record_layout import RECORDED_MAP, TOP_KEYS, TOP_WEIGHTS
from ringmpi.storage.recorded import RecordedArray
from ringmpi.storage.results import Results
from ringmpi.storage.source import ArraySource

DIGITS_SHOWN = 16
POSITIONS_SHOWN = 5
LAST_AXES = {RECORDED_MAP: "key block", TOP_KEYS: "nth", TOP_WEIGHTS: "nth"}  # of others: channel


def digest(array: ArraySource | RecordedArray) -> Check:
    """The bits of a dataset are those that were written."""
    recorded, found = str(array.recorded_digest), dataset_digest(array)
    facts = {"recorded": recorded, "found": found}
    text = f"{array.name} has the bits that were written, blake2b {found[:DIGITS_SHOWN]}"
    if found != recorded:
        text = f"{array.name} was changed after it was written, blake2b {found[:DIGITS_SHOWN]}"
        text += f", recorded {recorded[:DIGITS_SHOWN]}"
    return Check("digest", found == recorded, text, facts, of=array.name)


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
        text = f"input {path} is gone ({error}) If it was moved, give its new place with --input PATH"
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
        return Check(
            "input", False, f"input {path} changed since the run read it: different numbers in {changed}", facts
        )
    if same:  # a run that did not read all of it
        return Check("input", True, f"input {path} has the size and time of change that the run saw", facts)
    now, then = (f"{int(it['size_bytes']):,} bytes, changed {_time(int(it['mtime_ns']))}" for it in (found, recorded))
    return Check("input", False, f"input {path} is not the file that the run read ({now}; the run read {then})", facts)


def _time(nanoseconds: int) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(sep=" ", timespec="microseconds")


def pairs(question: Question, account: Account) -> Check:
    """Pairs of the mask, asked, attended and summed over ring steps are one number."""
    heads, counts = question.problem.heads, account.counts
    of_mask = total_pairs(question.problem.slices)
    found = counted_pairs(counts, account.timeline, of_mask * heads.query_slabs, earlier=account.earlier_pairs[0])
    facts = {"pairs_of_mask": of_mask, "query_slabs": heads.query_slabs}
    facts |= {name: count for name, count in found.items() if name not in facts}
    if len(set(found.values())) == 1 and counts.query_slabs == heads.query_slabs:
        return Check("pairs", True, f"pairs attended {of_mask:,} of {of_mask:,} x {_heads(heads)}", facts)
    text = (
        f"pairs attended {counts.pairs_attended:,} (sum over ring steps {found['pairs_attended_by_steps']:,}), asked "
        f"{counts.pairs_asked:,} over {counts.query_slabs} heads, but the mask has {of_mask:,} x {_heads(heads)} = "
        f"{found['pairs_of_mask']:,}"
    )
    return Check("pairs", False, text, facts)


def backward_pairs(question: Question, backward: BackwardAccount, earlier: int) -> Check:
    """The backward pass has met each pair of the mask once more, or twice where both sides travelled.

    earlier : pairs of the runs before the one that the timeline is of
    """
    problem = question.problem
    of_mask = total_pairs(problem.slices) * problem.heads.query_slabs * problem.schedule.backward_passes
    found = counted_pairs(backward, backward.timeline, of_mask, earlier=earlier)
    check = _pairs_of_later_pass(BACKWARD, f"backward pass ({backward.travel} travelled)", found)
    return replace(check, facts=check.facts | {"travel": backward.travel})


def map_pairs(question: Question, record: LateRecord | None) -> Check:
    """The map pass has met each pair of the mask once more."""
    of_mask = total_pairs(question.problem.slices) * question.problem.heads.query_slabs
    if record is None or record.timeline is None:
        text = "map pass: the file has no record of it"
        return Check("pairs", False, text, {"pairs_of_mask": of_mask}, of=MAP)
    return _pairs_of_later_pass(MAP, "map pass", counted_pairs(record, record.timeline, of_mask))


def counted_pairs(
    counts: PairCounts | BackwardAccount | LateRecord, timeline: PassTimeline, of_mask: int, *, earlier: int = 0
) -> dict[str, int]:
    """The pairs of a pass over all heads, counted in four ways: one number where the pass was exact.

    Parameters
    ----------
    of_mask : int
        Pairs that it had to meet.
    earlier : int
        Pairs of the runs before the one that the timeline is of.
    """
    return {
        "pairs_of_mask": of_mask,
        "pairs_asked": counts.pairs_asked,
        "pairs_attended": counts.pairs_attended,
        "pairs_attended_by_steps": int(timeline.pairs_attended.sum(dtype=object)) + earlier,
    }


def _pairs_of_later_pass(of: str, said: str, found: dict[str, int]) -> Check:
    """One that comes after the forward pass; `said`: which, in words."""
    text = f"{said}: pairs attended {found['pairs_attended']:,} of {found['pairs_of_mask']:,}"
    if len(set(found.values())) == 1:
        return Check("pairs", True, text, dict(found), of=of)
    text += f", asked {found['pairs_asked']:,}, sum over ring steps {found['pairs_attended_by_steps']:,}"
    return Check("pairs", False, text, dict(found), of=of)


def _heads(heads: HeadShape) -> str:
    return f"{heads.query_heads} heads" + (f" x batch {heads.batch}" if heads.batch > 1 else "")


def shape(question: Question, results: Results) -> Check:
    """The arrays have the shape and dtypes that the input asks for."""
    dtype = question.problem.dtype
    needed = {name: (shape, dtype_of(name, dtype)) for name, shape in question.shapes.items()}
    needed |= question.late_shapes
    found = {array.name: (array.shape, array.dtype) for array in results.arrays}
    if found == needed:
        return Check("shape", True, _shapes(found))
    return Check("shape", False, f"{_shapes(found)}, but the input and the options ask for {_shapes(needed)}")


def _shapes(arrays: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> str:
    return ", ".join(f"{name.strip('/')} {shape} {dtype}" for name, (shape, dtype) in arrays.items())


def chosen_rows(question: Question, stored: RecordedArray) -> Check:
    """The rows whose top keys are recorded are those that the run was asked for."""
    asked = None if question.late is None else question.late.top_rows
    needed = [] if asked is None else asked.tolist()
    found = stored.read(slice(None)).tolist()
    facts = {"asked": needed, "found": found}
    text = f"{stored.name}: {len(found):,} rows, those that were asked for"
    if found != needed:
        text = f"{stored.name}: positions {_some(found)}, but the run was asked for {_some(needed)}"
    return Check("positions", found == needed, text, facts, of=stored.name)


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
        f"{worst.bound:.3g} is permitted (ratio {worst.ratio:.2f}) at {_place(worst.where, judged.name)}"
    )
    if not judged.wrong:
        hidden = " smaller than the tolerance" if judged.rows == length else ", if any, in rows not recomputed"
        text += f"; the change is{hidden}" if changed else ""
        text += basis
        text += (
            "" if has_wider_reference(question.problem.dtype) else "; judged in float64: no wider dtype is available"
        )
        return Check("rows", True, text, facts, of=judged.name)
    text += (
        f", found {worst.found:.9g}, should be {worst.reference:.9g}; "
        f"rows beyond tolerance: {len(judged.wrong):,}, at positions {_some(judged.wrong)}"
    )
    return Check("rows", False, text, facts, of=judged.name)


def _place(where: Sequence[int], name: str) -> str:
    """Index of an element of an array in words."""
    batch, *rest = zip(("batch", "head", "position", LAST_AXES.get(name, "channel")), where, strict=False)
    named = rest if where[0] == 0 else [batch, *rest]
    return ", ".join(f"{name} {index}" for name, index in named)


def _some(positions: Sequence[int]) -> str:
    more = ", ..." if len(positions) > POSITIONS_SHOWN else ""
    return ", ".join(map(str, positions[:POSITIONS_SHOWN])) + more
