"""What was found, for docs/performance.md and for programs; written at once, so that nothing is lost at the end."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ringmpi
from tests.device.outcome import Outcome, failed
from tests.device.timing import Time

# TFLOP/s of dense bfloat16 products, by a word in the name of the card (NVIDIA data sheets of H100 and A100, SXM).
PEAKS = {"H200": 989.0, "H100": 989.0, "A100": 312.0}
OWN = "ringmpi"  # as runs compute (timing.OWN_KERNELS)


class Findings:
    """All of them, with the device that they are of; found.json and times.md in a folder.

    Parameters
    ----------
    device : Device
    folder : Path
        Made where it is not there.
    """

    def __init__(self, device: Any, folder: Path) -> None:
        self._device, self._folder, self._begun = device, folder, time.monotonic()
        self.outcomes, self.table = list[Outcome](), list[Time]()
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{device.name}, {device.architecture}; all that is found is written to {folder}", flush=True)  # noqa: T201

    @property
    def failed(self) -> int:
        """Checks that have."""
        return sum(outcome.passed is False for outcome in self.outcomes)

    def take(self, part: str, found: Iterator[Outcome | Time], end: float) -> None:
        """What a part finds until time is up (time.monotonic). An error ends this part alone."""
        try:
            while time.monotonic() < end:
                one = next(found, None)
                if one is None:
                    return
                self._keep(one)
        except Exception as error:
            self._keep(failed(part, error))
        else:
            self._keep(Outcome(f"{part}, all that is left of it", None, "time is up"))

    def summary(self) -> str:
        """What has failed once more, then one line."""
        wrong = [f"{outcome}\n" for outcome in self.outcomes if outcome.passed is False]
        left_out = sum(outcome.passed is None for outcome in self.outcomes)
        return "".join(wrong) + (
            f"{len(self.outcomes)} checks, {self.failed} failed, {left_out} not run; {len(self.table)} times; "
            f"{time.monotonic() - self._begun:.0f} s"
        )

    def _keep(self, one: Outcome | Time) -> None:
        print(one, flush=True)  # noqa: T201
        if isinstance(one, Outcome):
            self.outcomes.append(one)
        else:
            self.table.append(one)
        said = json.dumps(as_json(self._device, self.outcomes, self.table), indent=1) + "\n"
        (self._folder / "found.json").write_text(said, encoding="utf-8")
        (self._folder / "times.md").write_text(as_markdown(self._device, self.table), encoding="utf-8")


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
    own = next((other.seconds for other in table if other.shape == shape and other.contender == OWN), None)
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
