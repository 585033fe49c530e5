"""All checks of what was recorded after the forward pass."""

from __future__ import annotations

from collections.abc import Iterator

from ringmpi.analysis import checks
from ringmpi.analysis.certificate import Check
from ringmpi.analysis.recompute import Ints, Judged
from ringmpi.analysis.recompute_map import all_sums, recompute_map
from ringmpi.analysis.recompute_received import recompute_received
from ringmpi.analysis.recompute_top import recompute_top, rows_digest
from ringmpi.core.slices import total_pairs
from ringmpi.question import Question
from ringmpi.storage.record_layout import MAP, TOP_KEYS
from ringmpi.storage.results import Results


def check_second(question: Question, results: Results, positions: Ints, changed: set[str]) -> Iterator[Check]:
    """Pairs of the map pass, sums of all weights, and some of them recomputed.

    Parameters
    ----------
    positions : int64 [rows]
        Ascending: of the rows that are recomputed; about as many of what is recorded here.
    changed : set of str
        Arrays of another digest than was written.
    """
    if question.has_map_pass:
        yield _pairs(question, results)
    yield from rows_digest(results)
    yield from all_sums(question, results)
    if len(positions):
        for judged, of in _recomputed(question, results, positions):
            yield checks.rows(judged, question, changed=judged.name in changed, of=of)


def _recomputed(question: Question, results: Results, positions: Ints) -> Iterator[tuple[Judged, tuple[int, str]]]:
    """What was judged, and how many there are of it."""
    of_map = recompute_map(question, results, positions)
    if of_map is not None:
        yield of_map, (results.second[MAP].length, "query blocks")
    of_keys = recompute_received(question, results, len(positions))
    if of_keys is not None:
        yield of_keys, (question.k.length, "keys")
    for judged in recompute_top(question, results, len(positions)):
        yield judged, (results.second[TOP_KEYS].length, "chosen rows")


def _pairs(question: Question, results: Results) -> Check:
    """The map pass has met each pair of the mask once more."""
    second, name = results.record.second, "pairs of the map pass"
    of_mask = total_pairs(question.problem.slices) * question.problem.heads.query_slabs
    if second is None or second.timeline is None:
        return Check(name, False, "map pass: the file has no record of it", {"pairs_of_mask": of_mask})
    by_steps = int(second.timeline.pairs_attended.sum(dtype=object))
    facts = {
        "pairs_of_mask": of_mask,
        "pairs_asked": second.pairs_asked,
        "pairs_attended": second.pairs_attended,
        "pairs_attended_by_steps": by_steps,
    }
    text = f"map pass: pairs attended {second.pairs_attended:,} of {of_mask:,}"
    if of_mask == second.pairs_asked == second.pairs_attended == by_steps:
        return Check(name, True, text, facts)
    return Check(name, False, f"{text}, asked {second.pairs_asked:,}, sum over ring steps {by_steps:,}", facts)
