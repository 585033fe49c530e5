"""The attention map and what keys receive, checked: some query blocks recomputed from the input, and sums of all.

Every row gives 1 to its keys, or what its sink logit leaves: so rows of the map have known sums, and so has all that
keys receive, from /log_sum_exp as it is in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ringmpi.analysis.certificate import Check
from ringmpi.analysis.recompute import Array, Ints, Judged, judge_rows, key_slabs, rows_at_once
from ringmpi.core.attention_map import block_count, rows_with_keys
from ringmpi.core.dtypes import accumulate_dtype, wide_dtype
from ringmpi.core.reference import RowIntervals, row_intervals
from ringmpi.core.reference_map import BlockWeights
from ringmpi.core.tolerance import sum_of_weights_bound, weight_scale
from ringmpi.question import Question
from ringmpi.storage.record_layout import MAP, RECEIVED
from ringmpi.storage.recorded import RecordedArray
from ringmpi.storage.results import Results

ROWS_AT_ONCE = 1 << 16


def recompute_map(question: Question, results: Results, positions: Ints) -> Judged | None:
    """Recompute the query blocks of the map in which some of `positions` lie, about as many rows as there are of these.

    Parameters
    ----------
    question : Question
    results : Results
    positions : int64 [rows]
        Ascending; at least one.

    Returns
    -------
    Judged or None
        Its rows are query blocks, each by its first position. None: the run has recorded no map.
    """
    stored, block = results.recorded_array(MAP), _block(results)
    if stored is None:
        return None
    touched = np.unique(positions // block)
    every = len(positions) == question.q.length
    count = len(touched) if every else max(len(positions) // block, 1)
    blocks = touched[np.unique(np.linspace(0, len(touched) - 1, min(count, len(touched))).astype(np.int64))]
    found = np.concatenate([_by_heads(stored, results, slice(b, b + 1)) for b in blocks.tolist()], axis=2)
    naive, reference, largest = zip(*(_query_block(question, b, block) for b in blocks.tolist()), strict=True)
    near, exact = np.stack(naive, axis=2), np.stack(reference, axis=2)
    scale = weight_scale(exact, np.array(largest))
    return replace(judge_rows(found, blocks * block, near, exact, scale), name=MAP)


def sums_of_map(question: Question, results: Results) -> Check | None:
    """Whether every row of the map sums to what its rows give; None: there is no map."""
    stored, block = results.recorded_array(MAP), _block(results)
    if stored is None:
        return None
    given = _given(question, results, block)
    expected = given.sums / np.maximum(given.rows, 1)
    found = np.empty_like(expected)
    for start in range(0, expected.shape[2], 64):
        some = slice(start, start + 64)
        found[:, :, some] = _by_heads(stored, results, some).sum(-1, dtype=np.float64)
    bound = np.full(expected.shape, sum_of_weights_bound(question.problem.dtype, given.largest))
    return _sums_check(MAP, "rows of the map", found, expected, bound)


def sums_of_received(question: Question, results: Results) -> Check | None:
    """Whether keys receive what all rows give, head by head; None: it was not recorded."""
    stored = results.recorded_array(RECEIVED)
    if stored is None:
        return None
    given = _given(question, results, max(question.q.length, 1))
    expected = given.sums.sum(-1)
    found = np.zeros_like(expected)
    for start in range(0, question.k.length, ROWS_AT_ONCE):
        found += _by_heads(stored, results, slice(start, start + ROWS_AT_ONCE)).sum(-1, dtype=np.float64)
    bound = sum_of_weights_bound(question.problem.dtype, given.largest) * max(int(given.rows.sum()), 1)
    return _sums_check(RECEIVED, "heads", found, expected, np.full(expected.shape, bound))


def map_and_received(question: Question, results: Results) -> Check | None:
    """Whether blocks of keys receive by the map what their keys receive; None where one of the two is not there."""
    stored, keys, block = results.recorded_array(MAP), results.recorded_array(RECEIVED), _block(results)
    if stored is None or keys is None:
        return None
    rows = rows_with_keys(question.problem.slices, question.q.length, block)
    by_map = np.zeros((*results_heads(question), block_count(question.k.length, block)))
    for start in range(0, len(rows), 64):
        some = slice(start, start + 64)
        part = _by_heads(stored, results, some).astype(np.float64)
        by_map += (part * rows[some, None]).sum(2)
    by_key = np.zeros_like(by_map)
    for start in range(0, by_map.shape[2]):
        by_key[:, :, start] = _by_heads(keys, results, slice(start * block, (start + 1) * block)).sum(
            -1, dtype=np.float64
        )
    bound = sum_of_weights_bound(question.problem.dtype, np.ones(1)) * np.maximum(by_map, 1)
    return _sums_check(f"{MAP} and {RECEIVED}", "blocks of keys", by_key, by_map, bound)


@dataclass(frozen=True)
class _Given:
    """What rows give to all keys together: sums [batch, heads, blocks], rows that see a key [blocks]; log_sum_exp."""

    sums: Array
    rows: Ints
    largest: Array


def _given(question: Question, results: Results, block: int) -> _Given:
    problem, length = question.problem, question.q.length
    rows = rows_with_keys(problem.slices, length, block)
    sums = np.zeros((*results_heads(question), len(rows)))
    largest = np.zeros(1)
    sinks = problem.sink_logits
    for start in range(0, length, ROWS_AT_ONCE):
        positions = np.arange(start, min(start + ROWS_AT_ONCE, length))
        log_sum_exp = results.log_sum_exp.rows(positions).astype(np.float64)
        seen = _seen(row_intervals(problem.slices, positions))
        finite = np.abs(log_sum_exp[np.isfinite(log_sum_exp)])
        largest = np.maximum(largest, finite.max(initial=0))
        gives = np.broadcast_to(np.where(seen, 1.0, 0.0), log_sum_exp.shape)
        if sinks is not None:
            shift = np.where(seen, log_sum_exp, 0)
            with np.errstate(invalid="ignore", over="ignore"):
                gives = np.where(seen, 1 - np.exp(sinks[:, None] - shift), 0)
        gives = np.where(np.isfinite(log_sum_exp) | ~seen, gives, np.nan)
        firsts = np.flatnonzero(np.diff(positions // block, prepend=-1))
        sums[:, :, positions[firsts] // block] += np.add.reduceat(gives, firsts, axis=2)
    return _Given(sums, rows, largest)


def _seen(intervals: RowIntervals) -> Array:
    """Which rows see a key."""
    return np.bincount(intervals.row, minlength=intervals.rows) > 0


def _query_block(question: Question, nth: int, block: int) -> tuple[Array, Array, float]:
    """One row of the map [batch, heads, key blocks], naive and wide; and the largest |log_sum_exp| of its rows."""
    problem = question.problem
    dtypes = accumulate_dtype(problem.dtype), wide_dtype(problem.dtype)
    positions = np.arange(nth * block, min((nth + 1) * block, question.q.length))
    shape = *results_heads(question), block_count(question.k.length, block)
    sums, rows, largest = [np.zeros(shape, dtype) for dtype in dtypes], 0, 0.0
    height = rows_at_once(question)
    for some in np.split(positions, range(height, len(positions), height)):
        intervals = row_intervals(problem.slices, some)
        rows += int(_seen(intervals).sum())
        q = question.q.rows(some)
        both = [
            BlockWeights(q.astype(dtype), some, problem.scoring, block=block, keys=question.k.length)
            for dtype in dtypes
        ]
        for slab in key_slabs(question, intervals):
            for one in both:
                one.absorb(slab)
        for total, one in zip(sums, both, strict=True):
            weights, log_sum_exp = one.finish(problem.sink_logits)
            total += weights.sum(2)
        largest = max(largest, float(np.abs(log_sum_exp[np.isfinite(log_sum_exp)]).max(initial=0)))
    naive, reference = (total / max(rows, 1) for total in sums)
    return naive.astype(dtypes[0]), reference, largest


def results_heads(question: Question) -> tuple[int, int]:
    """Batch and query heads."""
    return question.problem.heads.batch, question.problem.heads.query_heads


def _block(results: Results) -> int:
    stored = results.recorded_array(MAP)
    return 1 if stored is None else stored.number("block") or 1


def _by_heads(stored: RecordedArray, results: Results, *axes: slice) -> Array:
    """Some of what is stored, [batch, heads, ...]."""
    batch, heads = results.output.full_shape[:2]
    found = stored.read(slice(None), *axes)
    return found.reshape(batch, heads, *found.shape[1:])


def _sums_check(name: str, what: str, found: Array, expected: Array, bound: Array) -> Check:
    """Sums that are known are what they must be."""
    same = np.isnan(found) & np.isnan(expected)
    error = np.where(same, 0, np.abs(found - expected))
    with np.errstate(invalid="ignore"):
        ratio = np.where(np.isnan(error), np.inf, error / bound)
    worst = np.unravel_index(int(ratio.argmax()), ratio.shape) if ratio.size else None
    wrong = int((ratio > 1).sum())
    facts: dict[str, Any] = {"sums": int(ratio.size), "wrong_sums": wrong}
    if worst is None:
        return Check(f"sums of {name}", True, f"{name}: nothing to add up", facts)
    facts |= {"worst_error": float(error[worst]), "permitted_error": float(bound[worst])}
    text = (
        f"{name}: sums of {ratio.size:,} {what}, worst error {error[worst]:.3g} where {bound[worst]:.3g} is permitted"
    )
    if not wrong:
        return Check(f"sums of {name}", True, text, facts)
    text += (
        f", found {found[worst]:.9g}, should be {expected[worst]:.9g} at {[int(i) for i in worst]}; wrong: {wrong:,}"
    )
    return Check(f"sums of {name}", False, text, facts)


def all_sums(question: Question, results: Results) -> Iterator[Check]:
    """All checks of sums that can be made."""
    for check in (sums_of_map, sums_of_received, map_and_received):
        found = check(question, results)
        if found is not None:
            yield found
