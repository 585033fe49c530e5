"""What `ringmpi bench ring` has measured, in figures: scaling, hiding, the plan beside it, the peer beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from ringmpi.bench.figures import Figure, figure, rate, ratio
from ringmpi.bench.job import environment_of_ranks
from ringmpi.bench.measure import measure_rates
from ringmpi.bench.peers.own import dtype_of, mask_of, pairs_of
from ringmpi.bench.questions import Case
from ringmpi.bench.report import Report, Row
from ringmpi.bench.ring import BACKWARD, BOTH, FORWARD, Measured, Samples, Wanted
from ringmpi.core.masking import Mask
from ringmpi.core.problem import Problem, pose_problem
from ringmpi.core.sharding import shardings_by_name
from ringmpi.planner.plan import Plan, make_plan

TERMS = {
    "wall": "seconds of the slowest rank, agreements included",
    "CPU": "CPU seconds of all ranks, or threads, together",
    "GF/s a rank": "flops (4 heads pairs head_dim; backward 2.5 times that) over wall seconds and ranks, or threads",
    "efficiency": "GF/s a rank over those on the fewest ranks, in the same round",
    "sent": "MB that all ranks send",
    "hidden": "1 - seconds waited, for late ranks too / seconds that the bytes of a rank take alone; worst rank",
    "plan / wall": "seconds that `ringmpi plan` predicts from rates measured on as many ranks, over those measured",
    "hides from": "queries per rank from which on a hop hides behind the work, by the same rates",
    "peer / ring": "wall seconds of the peer, on as many threads (at most the cores), over those of the ring",
    "peer / ring (CPU)": "the same of CPU seconds: what counts where others use the cores too",
    "time of forward": "wall seconds of the backward pass over those of the forward pass",
    "CPU of forward": "the same of CPU seconds",
    "bytes of forward": "bytes sent in the backward pass over those of the forward pass",
}


def ring_report(wanted: Wanted, measured: Measured, facts: dict[str, Any], *, planned: bool) -> Report:
    """All rows. `planned`: measure rates and plan each case too, in jobs of their own."""
    rows: list[Row] = []
    for nth in range(len(wanted.cases)):
        plans = {ranks: _plan(wanted, wanted.cases_on(ranks)[nth], ranks) for ranks in wanted.ranks if planned}
        for name in (FORWARD, BACKWARD, BOTH):
            for ranks in wanted.ranks:
                if measured.ranks.get((ranks, nth, name)):
                    rows.append(_ring_row(wanted, measured, (ranks, nth, name), plans.get(ranks)))
            rows += _peer_rows(wanted, measured, nth, name)
    settings = {name: value for name, value in asdict(wanted).items() if name not in ("cases", "pythons")}
    return Report(
        bench="ring",
        main="GF/s a rank",
        settings=settings | {"job": measured.about},
        terms=TERMS,
        machine=facts,
        rows=rows,
        absent=measured.absent,
    )


def _ring_row(wanted: Wanted, measured: Measured, key: tuple[int, int, str], plan: Plan | None) -> Row:
    ranks, nth, name = key
    case, samples = wanted.cases_on(ranks)[nth], measured.ranks[key]
    wall = figure("s", samples["wall"])
    figures = {"wall": wall, "CPU": figure("s", samples["cpu"]), "GF/s a rank": _rate(case, name, wall, ranks)}
    fewest = wanted.ranks[0]
    if ranks != fewest:
        first = figure("s", measured.ranks[fewest, nth, name]["wall"])
        figures["efficiency"] = ratio(figures["GF/s a rank"], _rate(wanted.cases_on(fewest)[nth], name, first, fewest))
    if ranks > 1:
        alone = np.array(samples["bytes"]) / ranks / np.median(measured.bandwidth[ranks, nth])
        figures["sent"] = figure("MB", [value / 1e6 for value in samples["bytes"]])
        figures["hidden"] = figure("", np.maximum(1 - np.array(samples["waited"]) / alone, 0).tolist())
    if plan is not None:
        figures |= _planned(plan, name, wall)
    if name == BACKWARD:
        figures |= _against_forward(samples, measured.ranks[ranks, nth, FORWARD])
    beside = measured.peer.get((wanted.peer_threads(ranks), nth, name))
    if beside and wanted.scaling == "strong":
        figures["peer / ring"] = ratio(figure("s", beside["wall"]), wall)
        figures["peer / ring (CPU)"] = ratio(figure("s", beside["cpu"]), figures["CPU"])
    return Row(
        subject=_subject(case, name, f"{ranks} rank{'s' * (ranks > 1)}"), figures=figures, note=_note(wanted, ranks)
    )


def _note(wanted: Wanted, ranks: int) -> str:
    """What to think of the times of a ring."""
    crowded = ranks * wanted.threads > wanted.peer_threads(ranks)
    notes = ["more ranks than cores: they take turns"] * crowded
    notes += ["arrays go from the host to the GPU and back"] * (wanted.backend == "cuda")
    return "; ".join(notes)


def _peer_rows(wanted: Wanted, measured: Measured, nth: int, name: str) -> Iterator[Row]:
    for (threads, number, passed), samples in sorted(measured.peer.items()):
        if (number, passed) == (nth, name):
            beside = max(ranks for ranks in wanted.ranks if wanted.peer_threads(ranks) == threads)
            case, wall = wanted.cases_on(beside)[nth], figure("s", samples["wall"])
            figures = {"wall": wall, "CPU": figure("s", samples["cpu"])}
            figures["GF/s a rank"] = _rate(case, name, wall, threads)
            if name == BACKWARD:
                figures |= _against_forward(samples, measured.peer[threads, nth, FORWARD])
            where = f"{wanted.peer}, {threads} thread{'s' * (threads > 1)}"
            yield Row(subject=_subject(case, name, where), figures=figures)


def _subject(case: Case, name: str, where: str) -> dict[str, str]:
    return {"shape": case.shape, "mask": case.mask, "dtype": case.dtype, "pass": name, "on": where}


def _rate(case: Case, name: str, wall: Figure, ranks: int) -> Figure:
    pairs = pairs_of(case)
    work = {backward: replace(case, backward=backward).flops(pairs) for backward in (False, True)}
    flops = {FORWARD: work[False], BACKWARD: work[True], BOTH: work[False] + work[True]}[name]
    return rate(flops / 1e9 / ranks, wall, "GF/s")


def _against_forward(backward: Samples, forward: Samples) -> dict[str, Figure]:
    found = {
        f"{name} of forward": ratio(figure("s", backward[meter]), figure("s", forward[meter]))
        for name, meter in (("time", "wall"), ("CPU", "cpu"))
    }
    if any(forward.get("bytes", ())):
        found["bytes of forward"] = ratio(figure("B", backward["bytes"]), figure("B", forward["bytes"]))
    return found


def _plan(wanted: Wanted, case: Case, ranks: int) -> Plan:
    """With rates that are measured here, kernels and hops apart."""
    problem = problem_of(case, ranks, wanted.sharding)
    rates = measure_rates(problem, wanted.backend, environment=environment_of_ranks(wanted.threads))
    return make_plan(problem, rates, "auto" if wanted.backward else None)


def _planned(plan: Plan, name: str, wall: Figure) -> dict[str, Figure]:
    """What a plan says of a pass."""
    forward = plan.times.total if plan.times else None
    backward = plan.backward.way.seconds if plan.backward else None
    both = None if forward is None or backward is None else forward + backward
    seconds = {FORWARD: forward, BACKWARD: backward, BOTH: both}[name]
    found = {} if seconds is None else {"plan / wall": figure("", [seconds / sample for sample in wall.samples])}
    length = plan.critical_block_length
    if name == FORWARD and plan.problem.size > 1 and length is not None and np.isfinite(length):
        found["hides from"] = figure("queries", [length])
    return found


def problem_of(case: Case, ranks: int, sharding: str) -> Problem:
    """The Problem of a case, made of shapes alone."""
    dtype = dtype_of(case.dtype)
    shapes = [(heads, case.length, case.head_dim) for heads in (case.query_heads, case.key_heads, case.key_heads)]
    arrays = [np.broadcast_to(np.zeros((), dtype), shape) for shape in shapes]
    mask: Mask = mask_of(case.mask, case.length, case.length)
    queries, keys = shardings_by_name(sharding, mask, case.length, case.length, ranks)
    return pose_problem(arrays, mask=mask, queries=queries, keys=keys, schedule="ring")
