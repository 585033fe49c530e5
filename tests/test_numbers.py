import math

import pytest

from ringmpi.numbers import byte_unit, counted, decimal, listed, percent, seconds, size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (3.2e-9, "3.2 ns"),
        (4.5e-5, "45 us"),
        (0.0831, "83.1 ms"),
        (12.34, "12.3 s"),
        (599.0, "599 s"),
        (754.0, "13 min"),
        (7500.0, "2 h 05 min"),
        (math.nan, "unknown"),
    ],
)
def test_seconds(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1536, "1.5 KiB"), (735_051_776, "701 MiB"), (2.5 * 2**40, "2.5 TiB")],
)
def test_sizes(value, text):
    assert size(value) == text
    assert text.endswith(byte_unit(value)[1])


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 %"), (0.934, "93 %"), (0.0041, "0.41 %"), (1.0, "100 %"), (math.nan, "-")]
)
def test_parts_of_one(value, text):
    assert percent(value) == text


@pytest.mark.parametrize(("value", "text"), [(1234.5, "1,234"), (3.14159, "3.14"), (math.nan, "-")])
def test_decimals(value, text):
    assert decimal(value) == text


def test_words():
    assert [counted(n, "rank") for n in (1, 4096)] == ["1 rank", "4,096 ranks"]
    assert [listed(list(names)) for names in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]
