"""What a run that goes on takes for another input than that of its checkpoint."""

import pytest

from ringmpi.checkpoint.keeper import differing


@pytest.mark.parametrize(
    ("known", "touched", "names"),
    [
        ({"query": "1"}, False, []),
        ({"query": "1"}, True, []),  # touched, or a copy, of the same content
        ({"query": "2"}, False, ["query"]),  # changed, with the time of the file put back
        ({"query": "2"}, True, ["query"]),
        ({}, False, []),
        ({}, True, ["query"]),  # nothing says that it is the same
    ],
)
def test_what_differs_from_before(known, touched, names):
    assert differing(known, {"query": "1"}, touched=touched) == names


def test_each_array_is_judged_by_itself():
    known = {"query": "1", "key": "2", "gone": "9"}
    assert differing(known, {"query": "1", "key": "3", "value": "4"}, touched=True) == ["key", "value"]
