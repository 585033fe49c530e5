"""Medians, their intervals, ratios."""

from itertools import product

import pytest

from ringmpi.bench.figures import CONFIDENCE, figure, order_interval, rate, ratio


@pytest.mark.parametrize("count", range(1, 12))
def test_the_interval_covers_the_median_as_often_as_it_says(count):
    """Each sample lies below or above the true median with the same chance: all 2^n ways are counted."""
    left_out, coverage = order_interval(count)
    ways = [sum(below) for below in product((0, 1), repeat=count)]
    inside = sum(left_out < below < count - left_out for below in ways)
    assert coverage == pytest.approx(inside / 2**count)
    narrower = sum(left_out + 1 < below < count - left_out - 1 for below in ways) / 2**count
    assert narrower < CONFIDENCE


def test_nine_rounds_are_enough_to_leave_out_the_extremes():
    assert order_interval(9) == (1, pytest.approx(1 - 20 / 512))
    found = figure("s", [5.0, 900.0, 4.0, 6.0, 3.0, 7.0, 2.0, 8.0, 1.0])
    assert (found.median, found.low, found.high) == (5, 2, 8)
    assert found.samples[1] == 900


@pytest.mark.parametrize(("samples", "median"), [([3.0], 3), ([1.0, 2.0], 1.5), ([3.0, 1.0, 2.0], 2)])
def test_few_samples_have_an_interval_from_end_to_end(samples, median):
    found = figure("s", samples)
    assert (found.median, found.low, found.high) == (median, min(samples), max(samples))
    assert found.coverage < CONFIDENCE


def test_ratios_are_formed_round_by_round():
    """The machine is twice as slow in the second round and four times in the third: the ratio does not see it."""
    mine, theirs = figure("s", [1.0, 2.0, 4.0]), figure("s", [1.5, 3.0, 6.0])
    assert ratio(theirs, mine).samples == [1.5, 1.5, 1.5]
    assert rate(8, mine, "GF/s").samples == [8, 4, 2]


@pytest.mark.parametrize(
    ("unit", "samples", "text"),
    [
        ("", [0.12345], "0.123"),
        ("GF/s", [1234.5, 99.95, 5e6], "1,234 GF/s [100, 5,000,000]"),
        ("s", [0.25, 0.5, 0.75], "0.5 s [0.25, 0.75]"),
        ("s", [0.025], "25 ms"),
        ("s", [2.5e-6, 2e-6, 3e-3], "2.5 us [2, 3,000]"),
    ],
)
def test_figures_are_written_with_three_digits_and_short_times_in_small_units(unit, samples, text):
    assert str(figure(unit, samples)) == text


def test_rounds_that_are_missing_are_no_ratio():
    with pytest.raises(ValueError, match="zip"):
        ratio(figure("s", [1.0]), figure("s", [1.0, 2.0]))
