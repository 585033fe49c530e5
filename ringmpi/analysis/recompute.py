"""Rows of an output, recomputed from the input file in wider precision and judged. Keys pass by in slabs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.asking.question import Question
from ringmpi.core.dtypes import accumulate_dtype, wide_dtype
from ringmpi.core.reference import KeySlab, RowIntervals, attend_rows, row_intervals
from ringmpi.core.tolerance import Scale, Verdict, error_ratios, finite_scale, judge, log_sum_exp_scale
from ringmpi.storage.source import ArraySource

Array = NDArray[Any]
Ints = NDArray[np.int64]

WORK_BYTES = 32 << 20  # of scores, and of keys and values of a slab, each in the widest dtype
SLAB_KEYS = 2048


@dataclass(frozen=True)
class Judged:
    """How recomputed rows of one array compare with the file.

    Attributes
    ----------
    name : str
        Of the dataset.
    rows : int
        How many were recomputed, all heads of each.
    worst : Verdict
        Its `where` is (batch, head, position, ...).
    wrong : tuple of int
        Positions with an element beyond tolerance, ascending.
    """

    name: str
    rows: int
    worst: Verdict
    wrong: tuple[int, ...]


def sample_positions(shards: Sequence[Sequence[range]], rows: int, seed: int) -> Ints:
    """Choose `rows` positions, one at random in each of as many equal parts of all shards laid end to end.

    So every shard is met in proportion to its length, and every part of it. All positions if there are no more.

    Returns
    -------
    int64 [min(rows, positions)]
        Ascending, distinct.
    """
    parts = [part for shard in shards for part in shard]
    ends = np.cumsum([0, *(len(part) for part in parts)])
    rows = min(rows, int(ends[-1]))
    edges = np.array([int(ends[-1]) * stratum // max(rows, 1) for stratum in range(rows + 1)], np.int64)
    drawn = np.random.default_rng(seed).integers(edges[:-1], edges[1:])
    owner = np.searchsorted(ends, drawn, side="right") - 1
    chosen = [parts[part][int(place - ends[part])] for part, place in zip(owner.tolist(), drawn, strict=True)]
    return np.sort(np.array(chosen, np.int64))


def recompute(question: Question, output: ArraySource, log_sum_exp: ArraySource, positions: Ints) -> list[Judged]:
    """Recompute the rows at `positions` against all their keys, and judge both arrays of the file there.

    Parameters
    ----------
    question : Question
    output, log_sum_exp : ArraySource
        Of the output file.
    positions : int64 [rows]
        Ascending; at least one.

    Returns
    -------
    list of Judged
        One for /output, one for /log_sum_exp.
    """
    blocks = np.array_split(positions, -(-len(positions) // rows_at_once(question)))
    judged = [_judge_rows(question, output, log_sum_exp, block) for block in blocks]
    return [joined(one_array) for one_array in zip(*judged, strict=True)]


def _judge_rows(question: Question, output: ArraySource, log_sum_exp: ArraySource, rows: Ints) -> list[Judged]:
    problem = question.problem
    intervals = row_intervals(problem.slices, rows)
    scale = ValueScale()
    naive, reference = attend_rows(
        question.q.rows(rows),
        rows,
        scale.watched(key_slabs(question, intervals)),
        problem.scoring,
        sink_logits=problem.sink_logits,
        dtypes=[accumulate_dtype(problem.dtype), wide_dtype(problem.dtype)],
    )
    scales = (scale.largest, log_sum_exp_scale(reference[1]))
    return [
        judge_array(source, rows, naive[part], reference[part], scales[part])
        for part, source in enumerate((output, log_sum_exp))
    ]


def judge_array(source: ArraySource, rows: Ints, naive: Array, reference: Array, scale: Scale) -> Judged:
    """Compare the rows of a dataset at positions `rows` with a naive result and a reference; `scale` of the policy."""
    return replace(judge_rows(source.rows(rows), rows, naive, reference, scale), name=source.name)


def judge_rows(found: Array, rows: Ints, naive: Array, reference: Array, scale: Scale) -> Judged:
    """Compare an array that has the rows at positions `rows`; the name is left open."""
    worst = judge(found, naive, reference, scale)
    batch, head, row, *channel = worst.where
    beyond = np.moveaxis(error_ratios(found, naive, reference, scale) > 1, 2, 0)
    wrong = rows[beyond.reshape(len(rows), -1).any(axis=1)]
    worst = replace(worst, where=(batch, head, int(rows[row]), *channel))
    return Judged("", len(rows), worst, tuple(wrong.tolist()))


def joined(blocks: Sequence[Judged]) -> Judged:
    """The same array, judged block by block."""
    worst = max((block.worst for block in blocks), key=lambda verdict: verdict.ratio)
    wrong = tuple(position for block in blocks for position in block.wrong)
    return Judged(blocks[0].name, sum(block.rows for block in blocks), worst, wrong)


class ValueScale:
    """Watches slabs go by and remembers the largest finite |v| that a row sees: the scale of the tolerance."""

    def __init__(self) -> None:
        self.largest = 0.0

    def watched(self, slabs: Iterator[KeySlab]) -> Iterator[KeySlab]:
        """Hand on `slabs` as they are."""
        for slab in slabs:
            self.largest = max(self.largest, finite_scale(slab.v[:, :, slab.allowed.any(axis=0)]))
            yield slab


def key_slabs(question: Question, intervals: RowIntervals) -> Iterator[KeySlab]:
    """An empty slab, then the slabs of keys that some of the rows see: others are not read."""
    length, step = question.k.length, slab_keys(question)
    yield _read_slab(question, intervals, range(0))
    for start in range(0, length, step):
        keys = range(start, min(start + step, length))
        if ((intervals.start < keys.stop) & (intervals.stop > keys.start)).any():
            yield _read_slab(question, intervals, keys)


def _read_slab(question: Question, intervals: RowIntervals, keys: range) -> KeySlab:
    arrays = []
    for source in (question.k, question.v):
        batch, heads, _, dim = source.full_shape
        arrays.append(np.empty((batch, heads, len(keys), dim), source.dtype))
        source.read([keys], arrays[-1])
    return KeySlab(keys, intervals.allowed(keys), *arrays)


def rows_at_once(question: Question) -> int:
    """Rows whose scores with a slab of keys are in memory together."""
    row = question.problem.heads.query_slabs * slab_keys(question) * _wide_itemsize(question)
    return max(1, WORK_BYTES // row)


def slab_keys(question: Question) -> int:
    """Keys, or rows, that are read at once."""
    heads = question.problem.heads
    key_bytes = heads.batch * heads.key_heads * (heads.head_dim + heads.value_dim) * _wide_itemsize(question)
    return max(1, min(SLAB_KEYS, WORK_BYTES // key_bytes))


def _wide_itemsize(question: Question) -> int:
    return wide_dtype(question.problem.dtype).itemsize
