from types import SimpleNamespace

import pytest

from ringmpi.report.overview import facts, lead, run_section, shortened
from tests.storage.test_computed_by import COMPUTED


class Nowhere:
    """A directory that keeps nothing."""

    def table(self, name, columns, lines):
        return f"{name}.csv"


def summary(**changed):
    table = SimpleNamespace(columns=(), rows=[])
    known = {
        "path": "out/demo.h5", "command_line": "ringmpi run", "started": "2026-01-02T03:04:05.6+00:00",
        "finished": "not a time", "seconds": 0.0, "hosts": tuple(f"n{n:02}" for n in range(12)), "options": {},
        "versions": {}, "input": {}, "batch": 1, "heads": 1, "query_length": 1000, "key_length": 1000, "value_dim": 8,
        "head_dim": None, "dtype": "float16", "pairs_asked": 10, "pairs_attended": 10, "exact": True,
        "pass_seconds": {"forward": 0.1}, "attempts": 1, "recorded": (), "ranks": 12, "table": lambda: table,
        "mask": "full", "key_heads": None, "computed_by": None, "part_timed": "",
    }  # fmt: skip
    return SimpleNamespace(**known | changed)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({}, "Exact attention of 1 query head over 1,000 queries, mask full, on 12 ranks."),
        (
            {"batch": 2, "heads": 8, "key_length": 50, "ranks": 1, "mask": "causal"},
            "Exact attention of 2 batch entries of 8 query heads over 1,000 queries and 50 keys, mask causal, on 1 "
            "rank.",
        ),
        ({"key_length": None}, "Exact attention of 1 query head over 1,000 queries, mask full, on 12 ranks."),
    ],
)
def test_the_first_sentence(changed, text):
    assert lead(summary(**changed)) == text


def entries(**changed):
    return dict(run_section(summary(**changed), Nowhere()).blocks[0].entries)


def test_times_and_nodes_are_for_people():
    found = entries()
    assert found["Started"] == "2026-01-02 03:04:05+00:00"
    assert found["Finished"] == "not a time, under 1 s later"
    assert found["Nodes"] == "n00, n01, n02, n03, n04, n05, n06, n07 and 4 more"
    assert "Attempts" not in found


def test_attempts_are_told_where_there_were_several():
    assert entries(attempts=3)["Attempts"] == "3: it was stopped and went on"


def test_an_inexact_run_is_not_called_exact(monkeypatch):
    monkeypatch.setattr("ringmpi.report.overview.analysis.memory", lambda results: SimpleNamespace(largest=1))
    monkeypatch.setattr("ringmpi.report.overview.analysis.overlap", lambda results, which: SimpleNamespace(share=None))
    wrong = facts(None, summary(exact=False, pairs_attended=9), None)[0]
    assert (wrong.value, wrong.mood) == ("NOT EXACT", "bad")
    assert wrong.note == "9 of 10 pairs attended"
    assert lead(summary(exact=False)).startswith("Attention of 1 query head")


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        ("(causal & documents(3, within=full))", "causal & documents(3, within=full)"),
        ("(a | b) & (c | d)", "(a | b) & (c | d)"),
        ("causal(high=end)", "causal(high=end)"),
        (" | ".join(["window(low=-9)"] * 40), f"{' | '.join(['window(low=-9)'] * 40)[:120].rstrip()} ..."),
    ],
)
def test_a_mask_is_told_in_words_and_not_longer_than_a_line(mask, text):
    assert shortened(mask) == text
    assert f"mask {text}, on" in lead(summary(mask=mask))


def test_what_computed_it_is_told_or_said_to_be_unknown():
    assert entries()["Computed by"].startswith("not recorded in this output; asked for were sharding auto")
    found = entries(computed_by=COMPUTED, key_heads=2)
    assert (found["Scale"], found["Schedule"], found["Sharding"]) == (
        "0.353553",
        "ring",
        "queries zigzag, keys striped",
    )
    assert found["Backend"] == "native (avx2), numpy, 1 to 4 threads per rank"
    assert found["Heads"].startswith("1 query head on 2 key heads")


def test_overlap_is_that_of_the_worst_pass_and_says_which(monkeypatch):
    shares = {"forward": 1.0, "map": None, "backward": 0.25}
    overlap = lambda results, which: SimpleNamespace(share=shares[which], which=which)  # noqa: E731
    monkeypatch.setattr("ringmpi.report.overview.analysis.memory", lambda results: SimpleNamespace(largest=1))
    monkeypatch.setattr("ringmpi.report.overview.analysis.overlap", overlap)
    found = {fact.name: fact for fact in facts(None, summary(pass_seconds=dict.fromkeys(shares, 1.0)), None)}["Overlap"]
    assert (found.value, found.note.rpartition("; ")[2]) == ("25 %", "the least of 2 passes, backward")
