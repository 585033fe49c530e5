from types import SimpleNamespace

import pytest

from ringmpi.report.overview import facts, lead, run_section


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
    }  # fmt: skip
    return SimpleNamespace(**known | changed)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({}, "Exact attention of 1 query head over 1,000 queries, mask full, on 12 ranks."),
        (
            {"batch": 2, "heads": 8, "key_length": 50, "ranks": 1, "options": {"attention.mask": "causal"}},
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
    monkeypatch.setattr("ringmpi.report.overview.analysis.overlap", lambda results: SimpleNamespace(share=None))
    wrong = facts(None, summary(exact=False, pairs_attended=9), None)[0]
    assert (wrong.value, wrong.mood) == ("NOT EXACT", "bad")
    assert wrong.note == "9 of 10 pairs attended"
