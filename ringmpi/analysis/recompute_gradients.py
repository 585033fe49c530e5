"""Gradients of a file: rows of /grad_query, keys of /grad_key and /grad_value, recomputed from the input and judged.

A row of /grad_query is recomputed from the input alone: its keys pass by twice, once for its log_sum_exp and output,
once for its gradient.

A key collects from every row that sees it, and needs the log_sum_exp and the output of all of these rows. To recompute
them costs as much as the whole forward pass, so where only some rows are asked for, those of the file are taken. What
that rests on: their digests say that they are what the run wrote, and the rows that were sampled say that what it wrote
is right; a wrong row that no sample met makes the same wrong term in the gradients of the run and in these. Where all
rows are asked for, all of this is recomputed too, and nothing is taken from the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple

import numpy as np

from ringmpi.analysis.recompute import (
    WORK_BYTES,
    Array,
    Ints,
    Judged,
    joined,
    judge_array,
    key_slabs,
    slab_keys,
)
from ringmpi.asking.question import Question
from ringmpi.core.dtypes import accumulate_dtype, wide_dtype
from ringmpi.core.gradient_tolerance import TermSizes, gradient_scales
from ringmpi.core.reference import Bools, KeySlab, attend_rows, row_intervals
from ringmpi.core.reference_backward import RowSlab, key_gradients, query_gradients
from ringmpi.core.tolerance import finite_scale, longest_row
from ringmpi.storage.layout import GRAD_QUERY, KEY_SIDE
from ringmpi.storage.results import Results

Rows = Callable[[Ints], list[RowSlab]]  # of positions: the same rows in the accumulation dtype and in a wider one
NOTHING = TermSizes(0, 0, 0, 0, 0, 0)
TEMPORARIES = 8  # arrays as large as the scores that a gradient needs at once


def recompute_query_gradients(question: Question, results: Results, positions: Ints) -> Judged:
    """Recompute /grad_query at ascending `positions`, from the input alone, and judge it there."""
    return joined([_judge_rows(question, results, block) for block in _blocks(question, positions)])


def recompute_key_gradients(question: Question, results: Results, keys: Ints, rows: Rows) -> list[Judged]:
    """Recompute /grad_key and /grad_value at ascending positions `keys` from all rows that see them, and judge both.

    rows : `rows_of_file` or `rows_of_input`
    """
    judged = [_judge_keys(question, results, block, rows) for block in _blocks(question, keys)]
    return [joined(one_array) for one_array in zip(*judged, strict=True)]


def rows_of_file(question: Question, results: Results) -> Rows:
    """Rows whose log_sum_exp and output are those of the file."""

    def rows(positions: Ints) -> list[RowSlab]:
        kept = results.output.rows(positions), results.log_sum_exp.rows(positions)
        return [_row_slab(question, positions, kept, dtype) for dtype in _dtypes(question)]

    return rows


def rows_of_input(question: Question) -> Rows:
    """Rows that are recomputed from the input: all of them now, to be asked for often."""
    every = np.arange(question.q.length)
    parts = [_recomputed(question, block) for block in _blocks(question, every)]
    kept = [
        tuple(np.concatenate([getattr(part[nth], name) for part in parts], axis=2) for name in ("log_sum_exp", "delta"))
        for nth in range(len(_dtypes(question)))
    ]

    def rows(positions: Ints) -> list[RowSlab]:
        q, grad_output = question.q.rows(positions), _upstream(question, positions)
        return [
            RowSlab(positions, q.astype(dtype), grad_output.astype(dtype), *(array[:, :, positions] for array in known))
            for dtype, known in zip(_dtypes(question), kept, strict=True)
        ]

    return rows


def _dtypes(question: Question) -> list[np.dtype]:
    """Of the naive computation, and of the reference."""
    return [accumulate_dtype(question.problem.dtype), wide_dtype(question.problem.dtype)]


def _blocks(question: Question, positions: Ints) -> list[Ints]:
    """`positions` cut such that the scores of a block with a slab of the other side stay within bounds."""
    one = question.problem.heads.query_slabs * slab_keys(question) * _dtypes(question)[1].itemsize * TEMPORARIES
    return np.array_split(positions, max(1, -(-len(positions) * one // WORK_BYTES)))


def _upstream(question: Question, positions: Ints) -> Array:
    """Rows of grad_output."""
    if question.grad_output is None:
        raise ValueError("the question asks for no gradients")
    return question.grad_output.rows(positions)


def _row_slab(question: Question, positions: Ints, kept: tuple[Array, Array], dtype: np.dtype) -> RowSlab:
    """Rows with the delta that follows from their output: `kept` are output and log_sum_exp."""
    grad_output, output, log_sum_exp = (array.astype(dtype) for array in (_upstream(question, positions), *kept))
    with np.errstate(invalid="ignore", over="ignore"):
        delta = (grad_output * output).sum(-1)
        if question.grad_log_sum_exp is not None:
            delta -= question.grad_log_sum_exp.rows(positions).astype(dtype)
    return RowSlab(positions, question.q.rows(positions).astype(dtype), grad_output, log_sum_exp, delta)


def _recomputed(question: Question, positions: Ints) -> list[RowSlab]:
    """Rows from the input alone.

    The naive ones take delta from an output in the dtype of the input: that is what a forward pass keeps.
    """
    problem = question.problem
    naive, reference = attend_rows(
        question.q.rows(positions),
        positions,
        key_slabs(question, row_intervals(problem.slices, positions)),
        problem.scoring,
        sink_logits=problem.sink_logits,
        dtypes=_dtypes(question),
    )
    with np.errstate(over="ignore"):
        kept = (naive[0].astype(problem.dtype), naive[1]), reference
    return [_row_slab(question, positions, each, dtype) for each, dtype in zip(kept, _dtypes(question), strict=True)]


def _judge_rows(question: Question, results: Results, positions: Ints) -> Judged:
    rows, sizes = _recomputed(question, positions), [NOTHING]

    def watched() -> Iterator[KeySlab]:
        for slab in key_slabs(question, row_intervals(question.problem.slices, positions)):
            seen = slab.allowed.any(axis=0)
            sizes.append(_sizes(question, rows[0], slab.k[:, :, seen], slab.v[:, :, seen]))
            yield slab

    naive, reference = query_gradients(rows, watched(), question.problem.scoring)
    scale, _, _ = gradient_scales(_largest(sizes), question.problem.scoring.scale, 1)
    return judge_array(results.gradients[GRAD_QUERY], positions, naive, reference, scale)


def _judge_keys(question: Question, results: Results, positions: Ints, rows: Rows) -> list[Judged]:
    keys = KeySlab(positions, np.empty(0, bool), question.k.rows(positions), question.v.rows(positions))
    scoring, sizes = question.problem.scoring, [NOTHING]

    def watched() -> Iterator[tuple[Bools, list[RowSlab]]]:
        for allowed, slab in _row_slabs(question, positions, rows):
            sizes.append(_sizes(question, slab[0], keys.k, keys.v))
            yield allowed, slab

    naive, reference = key_gradients(keys, watched(), scoring, _dtypes(question))
    scales = gradient_scales(_largest(sizes), scoring.scale, reference[2][..., None])[1:]
    return [
        judge_array(results.gradients[name], positions, naive[nth], reference[nth], scales[nth])
        for nth, name in enumerate(KEY_SIDE)
    ]


def _row_slabs(question: Question, keys: Ints, rows: Rows) -> Iterator[tuple[Bools, list[RowSlab]]]:
    """All rows that see some of the keys, slab by slab, and which sees which; others are not read."""
    q0, q1, k0, k1, low, high = question.problem.slices.T
    intervals = row_intervals(np.stack([k0, k1, q0, q1, -high, -low], axis=1), keys)  # the mirror: keys see rows
    length, step = question.q.length, slab_keys(question)
    for start in range(0, length, step):
        these = range(start, min(start + step, length))
        if ((intervals.start < these.stop) & (intervals.stop > these.start)).any():
            yield intervals.allowed(these).T, rows(np.arange(these.start, these.stop))


def _sizes(question: Question, rows: RowSlab, k: Array, v: Array) -> TermSizes:
    """How large rows and keys are that see each other."""
    extra = question.grad_log_sum_exp
    return TermSizes(
        query=finite_scale(rows.q),
        key=finite_scale(k),
        grad_output=finite_scale(rows.grad_output),
        longest_grad_output=longest_row(rows.grad_output),
        longest_value=longest_row(v),
        grad_log_sum_exp=0.0 if extra is None else finite_scale(extra.rows(rows.positions)),
    )


def _largest(sizes: Sequence[TermSizes]) -> TermSizes:
    return TermSizes(*(max(each) for each in zip(*map(astuple, sizes), strict=True)))
