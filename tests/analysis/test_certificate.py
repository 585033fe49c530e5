"""A certificate says the same to people and to machines."""

from __future__ import annotations

import json
import math

from ringmpi.analysis.certificate import Certificate, Check

GOOD = Check("pairs", True, "pairs attended 3 of 3 x 9 heads", {"pairs_of_mask": 3})
BAD = Check("rows", False, "worst ratio inf", {"worst_ratio": math.inf, "worst_at": [0, float("nan")]}, of="/output")


def test_all_checks_must_pass():
    assert Certificate("out.h5", 0, (GOOD, GOOD)).passed
    assert not Certificate("out.h5", 0, (GOOD, BAD)).passed


def test_lines_give_a_verdict_each_and_name_what_failed():
    assert Certificate("out.h5", 0, (GOOD, BAD)).lines() == [
        "pairs attended 3 of 3 x 9 heads: ok",
        "worst ratio inf: FAILED",
        "out.h5 NOT verified: 1 of 2 checks failed (rows of /output)",
    ]
    assert Certificate("out.h5", 0, (GOOD,)).lines()[-1] == "out.h5 verified: 1 checks passed"


def test_json_has_every_fact_and_no_number_that_json_lacks():
    text = json.dumps(Certificate("out.h5", 7, (GOOD, BAD)).as_dict(), allow_nan=False)
    found = json.loads(text)
    assert (found["file"], found["seed"], found["passed"]) == ("out.h5", 7, False)
    assert found["checks"][0] == {"name": "pairs", "passed": True, "text": GOOD.text, "pairs_of_mask": 3}
    assert found["checks"][1]["worst_ratio"] == "inf"
    assert found["checks"][1]["worst_at"] == [0, "nan"]


def test_the_name_of_a_check_is_its_kind_and_what_it_is_of():
    named = {("shards", ""): "shards", ("digest", "/output"): "digest of /output", ("pairs", ""): "pairs"}
    named |= {("pairs", "map"): "pairs of the map pass", ("certified", "input key"): "certified input key"}
    assert {key: Check(key[0], True, "", of=key[1]).name for key in named} == named
