"""`ringmpi bench exactness`: the questions of hard.py, put to ringmpi and to its peers; one judge for all.

The judge is the plain formula in float64 (longdouble for float64): core/reference.py, which shares no code with any
kernel. The bound is that of every test of ringmpi, core/tolerance.py: twice the error of the plain formula in float32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringmpi.api.arguments import batched, whole_problem
from ringmpi.bench.child import Child, NoAnswerError
from ringmpi.bench.figures import figure
from ringmpi.bench.hard import HARD, Hard
from ringmpi.bench.machine import machine
from ringmpi.bench.peers.own import dtype_of, mask_of
from ringmpi.bench.questions import Question
from ringmpi.bench.report import Report, Row
from ringmpi.core.dtypes import accumulate_dtype, wide_dtype
from ringmpi.core.reference import dense_attention
from ringmpi.core.tolerance import finite_scale, judge

Array = NDArray[Any]

ROUNDING = 0.02  # of the largest value: an error above it is no rounding error in any dtype
TERMS = {
    "right": "the error is within the bound of core/tolerance.py",
    "imprecise": "above the bound, but not more than 2 % of the largest value",
    "wrong": "further off, or NaN or inf where a number is due",
    "noticed": "a pair was dropped on purpose, and the count of pairs says so; 'not noticed': nothing does",
    "not supported": "the interface cannot express it, or refuses it with a message",
    "failed": "it crashed, or did not answer",
    "error": "largest error over what is permitted there",
}


def bench_exactness(names: list[str], contenders: list[str], pythons: dict[str, str]) -> Report:
    """Put the named cases to the contenders.

    Parameters
    ----------
    names : list of str
        Keys of HARD.
    contenders : list of str
        Names in peers.MODULES.
    pythons : dict
        Name of a peer -> path of the Python that has it.
    """
    rows, absent, versions = [], {}, {}
    for contender in contenders:
        try:
            with Child(contender, 1, pythons.get(contender)) as child:
                child.prepare_hard("full")
                versions[contender] = child.about
                rows += [_row(child, name) for name in names]
        except NoAnswerError as reason:
            absent[contender] = str(reason)
    return Report(
        bench="exactness",
        main="error",
        settings={"cases": names, "contenders": versions},
        terms=TERMS | {name: HARD[name].why for name in names},
        machine=machine(),
        rows=sorted(rows, key=lambda row: names.index(row.subject["case"])),
        absent=absent,
    )


def _row(child: Child, name: str) -> Row:
    subject = {"case": name, "contender": child.contender}
    try:
        child.prepare_hard(name)
        [output], pairs = child.answer()
    except NoAnswerError as reason:
        verdict = "failed" if reason.kind == "error" else "not supported"
        return Row(subject=subject, verdict=verdict, note=str(reason))
    verdict, error, note = verdict_on(HARD[name], output, pairs)
    figures = {"error": figure("x permitted", [error])} if np.isfinite(error) else {}
    return Row(subject=subject, figures=figures, verdict=verdict, note=note)


def verdict_on(case: Hard, output: Array, pairs: int | None) -> tuple[str, float, str]:
    """Judge an answer.

    Parameters
    ----------
    output : array [heads, queries, value_dim]
        float32 or float64, of numbers that the dtype of the question holds.
    pairs : int or None
        That the contender says it has attended to, over all heads.

    Returns
    -------
    word, error, note
        The error is in units of what is permitted.
    """
    question = case.question()
    asked = question if case.truth is None else replace(question, mask=case.truth)
    naive, reference, dtype = _truth(asked)
    scale = finite_scale(asked.v)
    verdict = judge(output.astype(dtype), naive, reference, scale)
    if case.truth is not None:
        due = int(asked.allowed().sum()) * len(asked.q)
        if pairs is not None and pairs != due:
            return "noticed", verdict.ratio, f"{pairs:,} pairs attended to, {due:,} asked"
        if not verdict.passed:
            return "noticed", verdict.ratio, f"by comparing with a reference: {verdict}"
        return "not noticed", verdict.ratio, "the error is within the bound, and there is no count that tells"
    if verdict.passed:
        return "right", verdict.ratio, ""
    off = verdict.error > ROUNDING * scale
    return ("wrong" if off else "imprecise"), verdict.ratio, str(verdict)


def _truth(question: Question) -> tuple[Array, Array, np.dtype[Any]]:
    """The plain formula in the accumulation dtype, and in a wider one; and the dtype of an answer."""
    dtype = dtype_of(question.dtype)
    arrays = [array.astype(dtype) for array in (question.q, question.k, question.v)]
    problem = whole_problem(
        arrays,
        mask=mask_of(question.mask, *question.lengths),
        ranks=1,
        shardings=("contiguous", None),
        schedule="ring",
        softcap=question.softcap,
        alibi_slopes=question.alibi_slopes,
        sink_logits=question.sink_logits,
    )
    allowed, sinks = problem.mask.allowed(*question.lengths), problem.sink_logits
    q, k, v = batched(arrays)
    naive, reference = (
        dense_attention(q, k, v, allowed, problem.scoring, sink_logits=sinks, dtype=wanted)[0][0]
        for wanted in (accumulate_dtype(dtype), wide_dtype(dtype))
    )
    return naive, reference, dtype
