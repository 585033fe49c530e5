"""The short table of performance.md: the medians of what was measured, machine beside machine."""

from __future__ import annotations

from typing import NamedTuple

from docs.markdown import table
from docs.measured import MACHINES, reported

MASKS = ("full", "causal")
PEER, OURS = "torch", "ringmpi native"
SHARES = ("of sgemm", "of FMA")


class Work(NamedTuple):
    """A line: which rows of which benchmark, and which of their figures."""

    about: str
    threads: str
    benchmark: str
    subject: dict[str, str]
    times: str


def _kernel(about: str, benchmark: str, shape: str, **subject: str) -> Work:
    threads = subject.get("threads", "1")
    where = {"shape": shape, "pass": "forward", "threads": "1"} | subject
    return Work(f"{about}, {shape}", threads, benchmark, where, "CPU ratio")


def _ring(about: str, benchmark: str, **subject: str) -> Work:
    return Work(about, "2 x 1", benchmark, {"on": "2 ranks"} | subject, "peer / ring")


WORKS = (
    _kernel("forward", "kernel", "8x4096x64"),
    _kernel("forward", "kernel", "8x4096x64", threads="2"),
    _kernel("forward", "kernel", "4x8192x128"),
    _kernel("forward", "kernel", "4x8192x128", threads="2"),
    _kernel("forward", "kernel", "8/2x4096x64"),
    _kernel("forward", "kernel-long", "1x32768x64"),
    _kernel("forward, bfloat16", "kernel-storage", "8x4096x64"),
    _kernel("backward", "kernel-backward", "8x4096x64", **{"pass": "backward"}),
    _kernel("backward", "kernel-backward", "2x4096x128", **{"pass": "backward"}),
    _ring("ring of 2 ranks, 8x8192x64, forward", "ring", **{"pass": "forward"}),
    _ring("the same, forward + backward", "ring", **{"pass": "forward + backward"}),
    _ring("the same beside 2 threads of ringmpi, forward", "ring-threads", **{"pass": "forward"}),
    _ring("the same beside 2 threads of ringmpi, forward + backward", "ring-threads", **{"pass": "forward + backward"}),
)


def in_short() -> str:
    """A line each work: how many times as fast as the peer, and what share of sgemm and of the peak, full / causal."""
    head = ["work", "threads"]
    for machine in MACHINES:
        head += [f"{machine}: times PyTorch", *SHARES]
    rows = ([work.about, work.threads, *(cell for each in MACHINES for cell in _cells(each, work))] for work in WORKS)
    return table(head, rows)


def _cells(machine: str, work: Work) -> list[str]:
    times = _both([_median(machine, work, mask, PEER, work.times) for mask in MASKS], "{:.2f}")
    found = ([_median(machine, work, mask, OURS, share) for mask in MASKS] for share in SHARES)
    return [times, *(_both(shares, "{:.0%}") for shares in found)]


def _median(machine: str, work: Work, mask: str, contender: str, name: str) -> float | None:
    report = reported(machine, work.benchmark)
    if report is None:
        return None
    wanted = work.subject | {"mask": mask} | ({"contender": contender} if "on" not in work.subject else {})
    for row in report.rows:
        if wanted.items() <= row.subject.items() and name in row.figures:
            return row.figures[name].median
    return None


def _both(values: list[float | None], form: str) -> str:
    if all(value is None for value in values):
        return "-"
    return " / ".join("-" if value is None else form.format(value) for value in values)
