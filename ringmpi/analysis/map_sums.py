"""Sums of the attention map, and of what keys receive, checked: of all of it, nothing is recomputed.

Every row gives 1 to its keys, or what its sink logit leaves: so rows of the map have known sums, and so has all that
keys receive, from /log_sum_exp as it is in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ringmpi.analysis.certificate import Check
from ringmpi.analysis.recompute import Array, Ints
from ringmpi.analysis.recompute_map import block_of, heads_of, rows_that_see
from ringmpi.asking.question import Question
from ringmpi.core.attention_map import block_count, rows_with_keys
from ringmpi.core.reference import row_intervals
from ringmpi.core.tolerance import finite_scale, sum_of_weights_bound
from ringmpi.storage.record_layout import RECEIVED, RECORDED_MAP
from ringmpi.storage.results import Results

ROWS_AT_ONCE = 1 << 16
BLOCKS_AT_ONCE = 64


def all_sums(question: Question, results: Results, terms: Array) -> Iterator[Check]:
    """All checks of sums that can be made; `terms` are the `sizes_of_scores`."""
    for found in (
        sums_of_map(question, results, terms),
        sums_of_received(question, results, terms),
        map_and_received(question, results),
    ):
        if found is not None:
            yield found


def sums_of_map(question: Question, results: Results, terms: Array) -> Check | None:
    """Whether every row of the map sums to what its rows give; None: there is no map."""
    stored, block = results.late.get(RECORDED_MAP), block_of(results)
    if stored is None:
        return None
    given = _given(question, results, block)
    expected = given.sums / np.maximum(given.rows, 1)
    found = np.empty_like(expected)
    for some in _parts(expected.shape[2], BLOCKS_AT_ONCE):
        found[:, :, some] = stored.rows(some).sum(-1, dtype=np.float64)
    of_head = sum_of_weights_bound(question.problem.dtype, given.largest, terms[..., None])
    return _sums_check(RECORDED_MAP, "rows of the map", found, expected, np.broadcast_to(of_head, expected.shape))


def sums_of_received(question: Question, results: Results, terms: Array) -> Check | None:
    """Whether keys receive what all rows give, head by head; None: it was not recorded."""
    stored = results.late.get(RECEIVED)
    if stored is None:
        return None
    given = _given(question, results, max(question.q.length, 1))
    expected = given.sums.sum(-1)
    found = np.zeros_like(expected)
    for some in _parts(question.k.length, ROWS_AT_ONCE):
        found += stored.rows(some).sum(-1, dtype=np.float64)
    bound = sum_of_weights_bound(question.problem.dtype, given.largest, terms) * max(int(given.rows.sum()), 1)
    return _sums_check(RECEIVED, "heads", found, expected, np.asarray(bound))


def map_and_received(question: Question, results: Results) -> Check | None:
    """Whether blocks of keys receive by the map what their keys receive; None where one of the two is not there."""
    stored, keys, block = results.late.get(RECORDED_MAP), results.late.get(RECEIVED), block_of(results)
    if stored is None or keys is None:
        return None
    rows = rows_with_keys(question.problem.slices, question.q.length, block)
    by_map = np.zeros((*heads_of(question), block_count(question.k.length, block)))
    for some in _parts(len(rows), BLOCKS_AT_ONCE):
        by_map += (stored.rows(some).astype(np.float64) * rows[some, None]).sum(2)
    by_key = np.zeros_like(by_map)
    for some in _parts(question.k.length, ROWS_AT_ONCE):
        _add_by_block(by_key, keys.rows(some).astype(np.float64), some, block)
    bound = sum_of_weights_bound(question.problem.dtype, np.ones(1), 0) * np.fmax(by_map, 1)  # the same weights, twice
    return _sums_check(f"{RECORDED_MAP} and {RECEIVED}", "blocks of keys", by_key, by_map, bound)


@dataclass(frozen=True)
class _Given:
    """What rows give to all keys together: sums [batch, heads, blocks], rows that see a key [blocks]; log_sum_exp."""

    sums: Array
    rows: Ints
    largest: Array


def _given(question: Question, results: Results, block: int) -> _Given:
    problem, length = question.problem, question.q.length
    rows = rows_with_keys(problem.slices, length, block)
    sums = np.zeros((*heads_of(question), len(rows)))
    largest = np.zeros(1)
    sinks = problem.sink_logits
    for positions in _parts(length, ROWS_AT_ONCE):
        log_sum_exp = results.log_sum_exp.rows(positions).astype(np.float64)
        seen = rows_that_see(row_intervals(problem.slices, positions))
        largest = np.maximum(largest, finite_scale(log_sum_exp))
        gives = np.broadcast_to(np.where(seen, 1.0, 0.0), log_sum_exp.shape)
        if sinks is not None:
            shift = np.where(seen, log_sum_exp, 0)
            with np.errstate(invalid="ignore", over="ignore"):
                gives = np.where(seen, 1 - np.exp(sinks[:, None] - shift), 0)
        gives = np.where(np.isfinite(log_sum_exp) | ~seen, gives, np.nan)
        _add_by_block(sums, gives, positions, block)
    return _Given(sums, rows, largest)


def _parts(length: int, most: int) -> Iterator[Ints]:
    """Indices 0, 1, ..., up to `most` at a time."""
    for start in range(0, length, most):
        yield np.arange(start, min(start + most, length))


def _add_by_block(sums: Array, values: Array, positions: Ints, block: int) -> None:
    """Add values [batch, heads, positions] to the sums of the blocks [batch, heads, blocks] in which they lie."""
    firsts = np.flatnonzero(np.diff(positions // block, prepend=-1))
    sums[:, :, positions[firsts] // block] += np.add.reduceat(values, firsts, axis=2)


def _sums_check(name: str, what: str, found: Array, expected: Array, bound: Array) -> Check:
    """Sums that are known are what they must be."""
    same = np.isnan(found) & np.isnan(expected)
    error = np.where(same, 0, np.abs(found - expected))
    with np.errstate(invalid="ignore"):
        ratio = np.where(np.isnan(error), np.inf, error / bound)
    worst = np.unravel_index(int(ratio.argmax()), ratio.shape) if ratio.size else None
    wrong, unknown = int((ratio > 1).sum()), int(same.sum())
    facts: dict[str, Any] = {"sums": int(ratio.size), "wrong_sums": wrong}
    if worst is None:
        return Check("sums", True, f"{name}: nothing to add up", facts, of=name)
    facts |= {"worst_error": float(error[worst]), "permitted_error": float(bound[worst])}
    text = (
        f"{name}: sums of {ratio.size:,} {what}, worst error {error[worst]:.3g} where {bound[worst]:.3g} is permitted"
    )
    if unknown:
        text += f"; {unknown:,} are NaN, because of NaN or inf in the input"
    if not wrong:
        return Check("sums", True, text, facts, of=name)
    text += (
        f", found {found[worst]:.9g}, should be {expected[worst]:.9g} at {[int(i) for i in worst]}; wrong: {wrong:,}"
    )
    return Check("sums", False, text, facts, of=name)
