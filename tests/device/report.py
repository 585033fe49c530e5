"""What was found, for docs/performance.md and for programs."""

from __future__ import annotations

import datetime
from dataclasses import asdict
from typing import Any

import ringmpi
from tests.device.conformance import Outcome
from tests.device.timing import Time

# TFLOP/s of dense bfloat16 products, by a word in the name of the card (NVIDIA data sheets of H100 and A100, SXM).
PEAKS = {"H200": 989.0, "H100": 989.0, "A100": 312.0}
OWN = "ringmpi"


def peak_of(card: str) -> float | None:
    """Of the card; None where it is not known."""
    return next((peak for word, peak in PEAKS.items() if word in card), None)


def as_markdown(device: Any, table: list[Time]) -> str:
    """A table of times, a row for each shape and contender."""
    peak = peak_of(device.name)
    lines = [
        f"{datetime.date.today()}, ringmpi {ringmpi.__version__}, {device.name}, bfloat16, kernels alone; ratio: "
        f"seconds of the contender over those of {OWN}.",
        "",
        "| tokens | head_dim | mask | pass | contender | ms | TFLOP/s | of peak | ratio |",
        "| ---: | ---: | --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    return "\n".join([*lines, *(_row(time, table, peak) for time in table)]) + "\n"


def _row(time: Time, table: list[Time], peak: float | None) -> str:
    shape = time.shape
    words = [shape.tokens, shape.head_dim, "causal" if shape.causal else "full", shape.which, time.contender]
    if time.seconds is None or time.teraflops is None:
        return f"| {' | '.join(map(str, words))} | {time.note} | - | - | - |"
    own = next(other.seconds for other in table if other.shape == shape and other.contender == OWN)
    share = f"{100 * time.teraflops / peak:.0f} %" if peak else "-"
    ratio = f"{time.seconds / own:.2f}" if own and time.contender != OWN else "-"
    numbers = [f"{1e3 * time.seconds:.3f}", f"{time.teraflops:.3g}", share, ratio]
    return f"| {' | '.join(map(str, [*words, *numbers]))} |"


def as_json(device: Any, outcomes: list[Outcome], table: list[Time]) -> dict[str, Any]:
    """All of it."""
    return {
        "card": device.name,
        "architecture": device.architecture,
        "date": str(datetime.date.today()),
        "ringmpi": ringmpi.__version__,
        "checks": [asdict(outcome) for outcome in outcomes],
        "times": [asdict(time) | {"teraflops": time.teraflops} for time in table],
    }
