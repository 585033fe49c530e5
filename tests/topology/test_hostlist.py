"""Slurm's lists of names, expanded and folded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi.errors import TopologyError
from ringmpi.topology.hostlist import MOST_NAMES, expand, fold

NAMES = st.lists(st.from_regex(r"[a-z]{1,3}-?\d{0,4}(\.[a-z]{2})?", fullmatch=True), max_size=30)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n1,n2 n3\tn4", ["n1", "n2", "n3", "n4"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[0]", ["n0"]),
        ("SW[14,58]", ["SW14", "SW58"]),
        ("n[1-2,7,09-10]", ["n1", "n2", "n7", "n09", "n10"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("r[1-2]n[1-2]-ib.site", ["r1n1-ib.site", "r1n2-ib.site", "r2n1-ib.site", "r2n2-ib.site"]),
        ("n[0-8/4]", ["n0", "n4", "n8"]),
        ("b,a,b", ["b", "a", "b"]),
        ("10.1.0.[1-2]", ["10.1.0.1", "10.1.0.2"]),
        ("[1-2]", ["1", "2"]),
        (",n1,,n2,", ["n1", "n2"]),
    ],
)
def test_expand(text, names):
    assert expand(text) == names


@pytest.mark.parametrize(
    "text", ["n[", "n]", "n[1", "n[1]]", "n[[1]]", "n[]", "n[a]", "n[1-]", "n[-1]", "n[٠-٣]", "n[2-1]", "n[1-2/0]"]
)
def test_what_is_no_list_is_refused(text):
    with pytest.raises(TopologyError, match="^job:3: "):
        expand(text, "job:3")


def test_lists_have_an_end():
    assert len(expand(f"n[1-{MOST_NAMES}]")) == MOST_NAMES
    for text in (f"n[0-{MOST_NAMES}]", "n[1-999999][1-999999]", "n" + "[1-9]" * 1000):
        with pytest.raises(TopologyError, match="too many names"):
            expand(text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["n1", "n2", "n3", "n5"], "n[1-3,5]"),
        (["n09", "n10", "n11"], "n[09-11]"),
        (["n9", "n10", "n11"], "n[9-11]"),
        (["n9", "n010"], "n[9,010]"),
        (["n09", "n10", "n99", "n100"], "n[09-10,99-100]"),
        (["n1", "n02"], "n[1,02]"),
        (["n2", "n1"], "n[2,1]"),
        (["login", "n1"], "login,n1"),
        (["a٠", "a١"], "a٠,a١"),
    ],
)
def test_fold(names, text):
    assert fold(names) == text


@given(NAMES)
def test_folding_loses_nothing(names):
    assert expand(fold(names)) == names
