"""What a run has done, as a table for people and as a dictionary for machines."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table

from ringmpi.checkpoint.keeper import GO_ON
from ringmpi.cli.printing import grid, print_uncut
from ringmpi.cli.seconds import rank_table, spread, titled
from ringmpi.core.masking import Mask
from ringmpi.job.run import EarlyEnd, Report
from ringmpi.numbers import counted, percent, size
from ringmpi.process.command import program
from ringmpi.storage.account import BackwardAccount, LateRecord, PairCounts, PassTimeline
from ringmpi.storage.layout import GRADIENTS
from ringmpi.storage.record_layout import RECORD

OTHERS = (("window", "{window=[255,0]}", Mask.window(255, 0)), ("causal", "causal", Mask.causal()))  # to try next
STEPS_SHOWN = 8

Counted: TypeAlias = PairCounts | BackwardAccount | LateRecord  # what says how many pairs


def show(report: Report | EarlyEnd, console: Console) -> None:
    """Print the table; one line of a run that ended early."""
    if isinstance(report, EarlyEnd):
        go_on = report.go_on and f"; {GO_ON}: {report.go_on}"
        console.print(f"{report.config.output.file}: {report.why}{go_on}")
        return
    console.print(_facts(report))
    print_uncut(_steps("seconds in each ring step", report.account.timeline), console)
    if (backward := report.account.backward) is not None:
        print_uncut(_steps(f"seconds backwards, {backward.travel} travelling", backward.timeline), console)
    if (late := report.account.late) is not None and late.timeline is not None:
        print_uncut(_steps("seconds in the map pass, queries travelling", late.timeline), console)
    print_uncut(rank_table(report.account), console)
    console.print(_results(report))


def as_dict(report: Report | EarlyEnd) -> dict[str, Any]:
    """The same, JSON-able."""
    if isinstance(report, EarlyEnd):
        return _early_end(report)
    timeline, counts = report.account.timeline, report.account.counts
    return {
        "output": report.config.output.file,
        "ranks": report.problem.size,
        "nodes": len(set(report.account.provenance.hosts)),
        "ring_order": report.account.provenance.ring_order,
        "placement": None if report.account.placement is None else asdict(report.account.placement),
        "attempts": None if report.account.attempts is None else asdict(report.account.attempts),
        "backend": report.backend,
        "mask": str(report.problem.mask),
        "sharding": report.problem.queries.name,
        "schedule": report.problem.schedule.name,
        **_counters(timeline, counts),
        "read_seconds": timeline.read_seconds.tolist(),
        "write_seconds": timeline.write_seconds.tolist(),
        "backward": _backward(report.account.backward),
        "map": _map(report.account.late),
        "peak_memory_bytes": timeline.peak_memory_bytes.tolist(),
        "array_bytes": report.array_bytes,
        "certificate": report.certificate.as_dict() if report.certificate else None,
        "ended": "finished",
        "exit_code": report.exit_code,
    }


def _early_end(end: EarlyEnd) -> dict[str, Any]:
    """What is to be said of a run that had nothing to do, or was stopped, JSON-able."""
    return {
        "output": end.config.output.file,
        "ended": end.why,
        "go_on": end.go_on or None,
        "certificate": end.certificate.as_dict() if end.certificate else None,
        "exit_code": end.exit_code,
    }


def _backward(backward: BackwardAccount | None) -> dict[str, Any] | None:
    """The backward pass; None where there was none."""
    return None if backward is None else {"travel": backward.travel, **_counters(backward.timeline, backward)}


def _map(record: LateRecord | None) -> dict[str, Any] | None:
    """The map pass; None where there was none."""
    if record is None or record.timeline is None:
        return None
    return _counters(record.timeline, record)


def _counters(timeline: PassTimeline, pairs: Counted) -> dict[str, Any]:
    """What every pass says of itself."""
    return {
        "attend_seconds": timeline.attend_seconds.tolist(),
        "flight_seconds": timeline.flight_seconds.tolist(),
        "wait_seconds": timeline.wait_seconds.tolist(),
        "overlap": timeline.overlap(),
        "bytes_sent": int(timeline.bytes_sent.sum()),
        "pairs_asked": pairs.pairs_asked,
        "pairs_attended": pairs.pairs_attended,
    }


def _facts(report: Report) -> Table:
    problem, heads = report.problem, report.problem.heads
    nodes = len(set(report.account.provenance.hosts))
    batch = f"batch {heads.batch}, " if heads.batch > 1 else ""
    scores = f"scale {problem.scoring.scale:g}" + (
        f", softcap {problem.scoring.softcap:g}" if problem.scoring.softcap else ""
    )
    if problem.scoring.dropout:
        scores += f", dropout {problem.scoring.dropout:g} with seed {problem.scoring.seed}"
    threads = f"{counted(report.threads, 'thread')} per rank"
    table = grid()
    table.add_row("input", f"{report.config.input.file} ({problem.dtype})")
    table.add_row(
        "attention",
        f"{batch}{heads.query_heads} query heads on {heads.key_heads} key heads, {problem.queries.length:,} queries, "
        f"{problem.keys.length:,} keys, head_dim {heads.head_dim}; mask {problem.mask}, {scores}",
    )
    for doubt in problem.doubts():
        table.add_row("note", doubt)
    table.add_row(
        "ring",
        f"{counted(problem.size, 'rank')} on {counted(nodes, 'node')}, {threads}; sharding {problem.queries.name}, "
        f"schedule {problem.schedule_in_words}, backend {report.backend}",
    )
    if (placement := report.account.placement) is not None:
        table.add_row("placement", placement.words)
    return table


def _steps(title: str, timeline: PassTimeline) -> Table:
    """One line a ring step."""
    table = titled(f"{title}: min/mean/max over ranks")
    for name in ("ring step", "attend", "wait", "overlap", "moved", "pairs"):
        table.add_column(name, justify="right")
    steps = timeline.attend_seconds.shape[1]
    for step in range(min(steps, STEPS_SHOWN)):
        table.add_row(
            f"{step + 1} of {steps}",
            "/".join(spread(timeline.attend_seconds[:, step])),
            "/".join(spread(timeline.wait_seconds[:, step])),
            _percent(timeline.overlap(step)),
            size(timeline.bytes_sent[:, step].sum()),
            f"{timeline.pairs_attended[:, step].sum():,}",
        )
    if steps > STEPS_SHOWN:
        table.add_row(f"... {steps}", "", "", "", "", "")
    table.add_row(
        "all",
        "/".join(spread(timeline.attend_seconds.sum(1))),
        "/".join(spread(timeline.wait_seconds.sum(1))),
        _percent(timeline.overlap()),
        size(timeline.bytes_sent.sum()),
        f"{timeline.pairs_attended.sum():,}",
    )
    return table


def _results(report: Report) -> Table:
    timeline, counts, file = report.account.timeline, report.account.counts, report.config.output.file
    table = grid()
    table.add_row("pairs", f"attended {_exact(counts)}")
    if (backward := report.account.backward) is not None:
        table.add_row("", f"backwards {_exact(backward)}")
    if (late := report.account.late) is not None and late.timeline is not None:
        table.add_row("", f"in the map pass {_exact(late)}")
    if (attempts := report.account.attempts) is not None and len(attempts.ranks) > 1:
        table.add_row("", attempts.words)
    peak, arrays = size(timeline.peak_memory_bytes.max()), size(report.array_bytes)
    table.add_row("memory", f"peak {peak} per rank, {arrays} of it arrays")
    if report.certificate is None:
        table.add_row("certificate", f"not asked for: {program()} verify {shlex.quote(file)}")
    else:
        wrong = [check.line() for check in report.certificate.checks if not check.passed]
        for n, line in enumerate([*wrong, _verdict(report)]):
            table.add_row("" if n else "certificate", line)
    gradients = ", ".join(["", *GRADIENTS]) if report.account.backward else ""
    recorded = "" if report.config.record is None else f", {RECORD}"
    table.add_row("output", f"{file}: /output {_shape(report)}, /log_sum_exp{gradients}{recorded}")
    table.add_row(
        "try next",
        f"{program()} verify {shlex.quote(file)} --rows {report.problem.queries.length}    (all rows, not a sample)",
    )
    if report.config.record is not None:
        folder = shlex.quote(str(Path(file).with_name(f"{Path(file).stem}-report")))
        table.add_row("", f"{program()} analyze {shlex.quote(file)} -o {folder}    (a page of what was recorded)")
    table.add_row("", f"the same run with  {_another(report)}    (another mask)")
    return table


def _exact(pairs: Counted) -> str:
    exact = "exact" if pairs.pairs_attended == pairs.pairs_asked else "NOT EXACT"
    return f"{pairs.pairs_attended:,} of {pairs.pairs_asked:,} asked: {exact}"


def _another(report: Report) -> str:
    """Options for a mask that the run does not have, and an output beside its own."""
    name, mask = next((name, text) for name, text, mask in OTHERS if str(mask) != str(report.problem.mask))
    file = Path(report.config.output.file)
    options = f"attention.mask={mask}", f"output.file={file.with_name(f'{file.stem}-{name}{file.suffix}')}"
    return " ".join(f"--set {shlex.quote(option)}" for option in options)


def _verdict(report: Report) -> str:
    """Verified or not, and how many rows that rests on."""
    certificate, length = report.certificate, report.problem.queries.length
    verdict = "verified" if certificate and certificate.passed else "NOT VERIFIED"
    rows = min(report.config.output.verify_rows, length)
    return f"{verdict}: pairs, hashes, and {rows:,} of {length:,} rows recomputed from the input in wider precision"


def _shape(report: Report) -> str:
    heads = report.problem.heads
    batch = f"{heads.batch}, " if heads.batch > 1 else ""
    return f"[{batch}{heads.query_heads}, {report.problem.queries.length}, {heads.value_dim}] {report.problem.dtype}"


def _percent(part: float | None) -> str:
    """A part of 1; empty where there is none."""
    return "" if part is None else percent(part)
