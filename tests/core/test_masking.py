"""Masks: the disjoint slices are exactly the pairs of the definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi import Mask
from ringmpi.errors import MaskError
from tests.strategies import LENGTHS, WHOLE_DTYPES, masks


def painted(slices, query_length, key_length):
    """How often each pair is covered."""
    i, j = np.arange(query_length)[:, None], np.arange(key_length)
    times = np.zeros((query_length, key_length), int)
    for q0, q1, k0, k1, low, high in slices.tolist():
        times += (i >= q0) & (i < q1) & (j >= k0) & (j < k1) & (j - i >= low) & (j - i <= high)
    return times


@given(st.data(), LENGTHS, LENGTHS)
def test_slices_cover_the_definition_once(data, query_length, key_length):
    mask = data.draw(masks(query_length, key_length))
    slices, allowed = mask.resolve(query_length, key_length), mask.allowed(query_length, key_length)
    assert (painted(slices, query_length, key_length) == allowed).all()
    assert mask.pairs(query_length, key_length) == allowed.sum()
    assert (np.diff(slices[:, 0]) >= 0).all()


def test_causal_counts_from_the_start_or_from_the_end():
    assert Mask.causal().allowed(2, 3).tolist() == [[1, 0, 0], [1, 1, 0]]
    assert Mask.causal(1).allowed(2, 3).tolist() == [[1, 1, 0], [1, 1, 1]]
    assert Mask.causal("end").allowed(2, 3).tolist() == [[1, 1, 0], [1, 1, 1]]
    assert Mask.causal("end").allowed(3, 2).tolist() == [[0, 0], [1, 0], [1, 1]]


def test_a_window_includes_both_ends():
    assert Mask.window(1, 0).allowed(3, 3).tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    assert Mask.window(0, 0).allowed(3, 3).tolist() == np.eye(3).tolist()
    assert (Mask.window(6, 0).allowed(7, 7) == Mask.causal().allowed(7, 7)).all()
    assert (Mask.window(None, 0).allowed(5, 9) == Mask.causal().allowed(5, 9)).all()
    assert Mask.window(None, None).allowed(4, 6).all()


def test_prefix_and_sinks_are_what_they_say():
    assert Mask.prefix(2).allowed(3, 4).tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]
    assert Mask.sinks(2).allowed(3, 4).tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]]


def test_documents_see_themselves_alone_each_with_its_own_diagonal():
    within_end = Mask.documents([2, 1], [3, 1], within=Mask.causal("end"))
    assert within_end.allowed(3, 4).tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]
    # intersecting with the global diagonal is another thing
    assert (Mask.documents([2, 1], [3, 1]) & Mask.causal()).pairs(3, 4) < within_end.pairs(3, 4)


def test_overlaps_count_once():
    assert (Mask.causal() | Mask.causal()).pairs(9, 9) == 45
    assert Mask.slices([[0, 9, 0, 9, -99, 0], [0, 9, 0, 9, -99, 99]]).pairs(9, 9) == 81


def test_documents_within_documents_are_laid_into_each():
    inner = Mask.documents([1, 2], within=Mask.causal())
    outer = Mask.documents([3, 3], within=inner)
    assert outer.pairs(6, 6) == 2 * (1 + 3)
    assert (painted(outer.resolve(6, 6), 6, 6) == outer.allowed(6, 6)).all()


def test_a_hundred_thousand_documents_resolve():
    lengths = np.random.default_rng(0).integers(1, 20, 100_000)
    mask = Mask.documents(lengths) & Mask.causal() | Mask.sinks(4)
    total = int(lengths.sum())
    starts = np.cumsum(lengths) - lengths
    rows = np.arange(total)
    first = np.repeat(starts, lengths)
    by_row = rows - first + 1 + np.minimum(first, 4)  # its document so far, and the sinks before it
    assert mask.pairs(total, total) == by_row.sum()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mask.window(-1, 0), "window left = -1"),
        (lambda: Mask.keys(5, 2), "0 <= start <= stop"),
        (lambda: Mask.window(0, 1.5), "window right = 1.5; it must be a whole number"),
        (lambda: Mask.window(1 << 60, 0), "whole number from 0 to 2.53"),
        (lambda: Mask.keys(0, True), "whole numbers"),
        (lambda: Mask.keys(0, 1 << 60), "stop <= 2.53"),
        (lambda: Mask.causal(1.5), "whole number from -2.53 to 2.53, or 'end'"),
        (lambda: Mask.causal("start"), "whole number from -2.53 to 2.53, or 'end'"),
        (lambda: Mask.causal(1 << 60), "whole number from -2.53 to 2.53, or 'end'"),
        (lambda: Mask.documents([1, 2], [3]), "2 query lengths and 1 key lengths"),
        (lambda: Mask.documents([1, -2]), "each from 0 to"),
        (lambda: Mask.documents([1.0, 2.0]), "whole numbers"),
        (lambda: Mask.documents(np.array([1 << 63, 8], np.uint64)), "each from 0 to 2.53"),
        (
            lambda: Mask.documents([(1 << 53) - 1] * 2048 + [2056]).resolve(8, 8),
            "query lengths sum to 18446744073709551624",
        ),
        (lambda: Mask.documents([3, 4]).resolve(8, 7), "query lengths sum to 7, but the query length is 8"),
        (lambda: Mask.documents([3, 4]).resolve(7, 8), "key lengths sum to 7, but the key length is 8"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(MaskError, match=message):
        make()


@pytest.mark.parametrize("dtype", WHOLE_DTYPES)
@pytest.mark.parametrize(
    "make",
    [
        lambda whole: Mask.window(whole(100), whole(5), whole(3)),
        lambda whole: Mask.window(whole(100), whole(0)) | Mask.sinks(whole(4)),
        lambda whole: Mask.causal(whole(7)),
        lambda whole: Mask.prefix(whole(9)) & Mask.keys(whole(2), whole(120)),
    ],
)
def test_whole_numbers_of_numpy_mean_the_same_mask(make, dtype):
    found, expected = make(np.dtype(dtype).type), make(int)
    assert found.fingerprint() == expected.fingerprint()
    assert str(found) == str(expected)
    assert found.pairs(700, 700) == expected.pairs(700, 700) == found.allowed(700, 700).sum()


def test_the_fingerprint_follows_the_definition():
    drawn = [
        Mask.full(),
        Mask.causal(),
        Mask.causal(1),
        Mask.causal("end"),
        Mask.window(3, 0),
        Mask.keys(0, 3),
        Mask.documents([1, 2]),
        Mask.documents([2, 1]),
        Mask.documents([2, 1], within=Mask.causal()),
        Mask.slices([[0, 1, 0, 1, 0, 0]]),
        Mask.causal() & Mask.keys(0, 3),
        Mask.causal() | Mask.keys(0, 3),
    ]
    assert len({mask.fingerprint() for mask in drawn}) == len(drawn)
    assert Mask.documents([1, 2]).fingerprint() == Mask.documents(np.array([1, 2], np.int32)).fingerprint()


def test_a_mask_says_what_it_is():
    assert str(Mask.window(3, 0) | Mask.sinks(4)) == "(window(low=-3, high=0) | (causal & keys(0, 4)))"
    assert str(Mask.documents([4, 5], within=Mask.causal("end"))) == "documents(2, within=causal(high=end))"
