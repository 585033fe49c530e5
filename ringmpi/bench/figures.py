"""Medians of interleaved rounds, with an interval that assumes nothing about how times are distributed.

The interval between the k-th smallest and the k-th largest of n samples holds the median with the chance

    1 - 2 sum_{i<k} C(n, i) / 2^n

(Hoefler and Belli 2015, "Scientific benchmarking of parallel computing systems", rule 5). The largest k that keeps this
at 95 % or more is taken; with 5 samples or fewer none does, and the interval is from the smallest to the largest.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

CONFIDENCE = 0.95


class Figure(BaseModel):
    """A measured quantity.

    Attributes
    ----------
    unit : str
        "s", "GF/s", ...; "" for a ratio.
    median, low, high : float
        And the interval that holds the median with the chance `coverage`.
    samples : list of float
        One a round, in order.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    unit: str
    median: float
    low: float
    high: float
    coverage: float
    samples: list[float]

    def __str__(self) -> str:
        """Median and interval, three digits each; short times in ms or us."""
        factor, unit = 1.0, f" {self.unit}" if self.unit else ""
        if self.unit == "s" and self.median < 0.1:
            factor, unit = (1e6, " us") if self.median < 1e-4 else (1e3, " ms")
        median, low, high = (_digits(value * factor) for value in (self.median, self.low, self.high))
        return f"{median}{unit}" if len(self.samples) == 1 else f"{median}{unit} [{low}, {high}]"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def figure(unit: str, samples: Sequence[float]) -> Figure:
    """The Figure of some samples, at least one."""
    ordered, (nth, coverage) = sorted(samples), order_interval(len(samples))
    return Figure(
        unit=unit,
        median=statistics.median(ordered),
        low=ordered[nth],
        high=ordered[-1 - nth],
        coverage=coverage,
        samples=list(samples),
    )


def order_interval(count: int) -> tuple[int, float]:
    """How many samples to leave out at either end, and the chance that the median lies between the rest."""

    def coverage(left_out: int) -> float:
        outside: int = sum(math.comb(count, i) for i in range(left_out + 1))
        return float(1 - 2 * outside / 2**count)

    inner = [nth for nth in range((count - 1) // 2 + 1) if coverage(nth) >= CONFIDENCE]
    best = max(inner, default=0)
    return best, max(coverage(best), 0.0)


def ratio(above: Figure, below: Figure, unit: str = "") -> Figure:
    """Formed round by round: what slows both cancels."""
    return figure(unit, [a / b for a, b in zip(above.samples, below.samples, strict=True)])


def rate(amount: float, seconds: Figure, unit: str) -> Figure:
    """`amount` a second."""
    return figure(unit, [amount / sample for sample in seconds.samples])
