"""All checks of the late record."""

from __future__ import annotations

from collections.abc import Iterator

from ringmpi.analysis import checks
from ringmpi.analysis.certificate import Check
from ringmpi.analysis.map_sums import all_sums
from ringmpi.analysis.recompute import Array, Ints, Judged
from ringmpi.analysis.recompute_map import recompute_map
from ringmpi.analysis.recompute_received import recompute_received
from ringmpi.analysis.recompute_top import recompute_top
from ringmpi.analysis.score_sizes import sizes_of_scores
from ringmpi.asking.question import Question
from ringmpi.storage.record_layout import RECORDED_MAP, TOP_KEYS
from ringmpi.storage.results import Results


def check_late(question: Question, results: Results, positions: Ints, changed: set[str]) -> Iterator[Check]:
    """Pairs of the map pass, sums of all weights, and some of them recomputed.

    Parameters
    ----------
    positions : int64 [rows]
        Ascending: of the rows that are recomputed; about as many of what is recorded here.
    changed : set of str
        Arrays of another digest than was written.
    """
    if question.has_map_pass:
        yield checks.map_pairs(question, results.account.late)
    if results.top_rows is not None:
        yield checks.chosen_rows(question, results.top_rows)
    if not results.late:
        return
    terms = sizes_of_scores(question)
    yield from all_sums(question, results, terms)
    if len(positions):
        for judged, of in _recomputed(question, results, positions, terms):
            yield checks.rows(judged, question, changed=judged.name in changed, of=of)


def _recomputed(
    question: Question, results: Results, positions: Ints, terms: Array
) -> Iterator[tuple[Judged, tuple[int, str]]]:
    """What was judged, and how many there are of it."""
    of_map = recompute_map(question, results, positions, terms)
    if of_map is not None:
        yield of_map, (results.late[RECORDED_MAP].length, "query blocks")
    of_keys = recompute_received(question, results, len(positions), terms)
    if of_keys is not None:
        yield of_keys, (question.k.length, "keys")
    for judged in recompute_top(question, results, len(positions), terms):
        yield judged, (results.late[TOP_KEYS].length, "chosen rows")
