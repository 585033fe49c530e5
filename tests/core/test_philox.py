"""Philox-4x32-10 against the published vectors and against itself in Python integers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi.core.philox import philox_4x32
from tests.core.plain_philox import plain_philox

WORD = st.one_of(st.sampled_from([0, 1, 2**31, 2**32 - 1]), st.integers(0, 2**32 - 1))
# Random123, tests/kat_vectors, philox4x32 10: counter, key, words.
PUBLISHED = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "expected"), PUBLISHED)
def test_published_vectors(counter, key, expected):
    low, high = words(key)
    assert tuple(int(word) for word in philox_4x32(words(counter), high << 32 | low)) == words(expected)
    assert plain_philox(words(counter), (low, high)) == words(expected)


@given(st.tuples(*[st.lists(WORD, min_size=1, max_size=3)] * 4), WORD, WORD)
def test_counters_broadcast_and_each_place_has_its_words(counters, low, high):
    a, b, c, d = (np.array(counter, np.int64) for counter in counters)
    found = philox_4x32((a, b[:, None], c[:, None, None], d[:, None, None, None]), high << 32 | low)
    for h, g, f, e in np.ndindex(len(d), len(c), len(b), len(a)):
        expected = plain_philox((counters[0][e], counters[1][f], counters[2][g], counters[3][h]), (low, high))
        assert tuple(int(word[h, g, f, e]) for word in found) == expected


def test_no_counter_is_changed():
    counter = tuple(np.full(3, n, np.uint64) for n in range(4))
    philox_4x32(counter, 1)
    assert [set(word.tolist()) for word in counter] == [{0}, {1}, {2}, {3}]
