"""`mpirun -n P ringmpi run` with [record]: what its file says of the rows, and what verify says of that."""

import json

import h5py
import numpy as np
import pytest

from ringmpi import Mask, Record, Recording
from ringmpi.core.scoring import Scoring
from ringmpi.storage.record_layout import RECORDED_ROWS
from tests.launched.conftest import ROOT
from tests.launched.test_run import passed
from tests.tolerances import assert_record

LENGTH = 301
SCORES = "[attention]\nmask = {window = [99, 0]}\nsoftcap = 4.0\nalibi = [0.5, 0.25, 0.125, 0.0]\ndropout = 0.2\n"


def recorded(path):
    with h5py.File(path) as file:
        return Record(*(file[name][...][None] for name in RECORDED_ROWS)), int(file["record/sinks"].attrs["keys"])


def inputs(path):
    with h5py.File(path) as file:
        return file["q"][...][None], file["k"][...][None]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("layout", ["merged", "virtual"])
def test_the_file_holds_what_the_formulas_say(mpirun, job, tmp_path, ranks, layout):
    options = f'layout = "{layout}"\n{SCORES}sink_logits = [0.5, -1.0, 2.0, 0.0]\n[record]\nrows = true\nsinks = 6\n'
    report = passed(mpirun(ranks, "run", job(LENGTH, options=options), "--json"))
    checked = {check["name"] for check in report["certificate"]["checks"]}
    assert {f"rows of {name}" for name in RECORDED_ROWS} <= checked
    assert {f"digest of {name}" for name in RECORDED_ROWS} <= checked
    found, keys = recorded(tmp_path / "out.h5")
    assert keys == 6
    scoring = Scoring(0.25, 4.0, np.array([0.5, 0.25, 0.125, 0.0]))
    allowed = Mask.window(99, 0).allowed(LENGTH, LENGTH)
    sinks = np.array([0.5, -1.0, 2.0, 0.0])
    assert_record(found, *inputs(tmp_path / "in.h5"), allowed, scoring, Recording(6), sink_logits=sinks)


def test_the_attention_has_the_same_bits_without_a_record(mpirun, job, tmp_path):
    outputs = []
    for record in ("", "[record]\n"):
        passed(mpirun(3, "run", job(LENGTH, options=SCORES + record), "--json", "--force"))
        with h5py.File(tmp_path / "out.h5") as file:
            outputs.append((file["output"][...].tobytes(), file["log_sum_exp"][...].tobytes()))
            assert ("record" in file) == bool(record)
    assert outputs[0] == outputs[1]


def test_a_changed_number_is_found_and_its_row_named(mpirun, job, tmp_path):
    passed(mpirun(2, "run", job(LENGTH, options=SCORES + "[record]\n"), "--json"))
    with h5py.File(tmp_path / "out.h5", "r+") as file:
        file["record/distance"][1, 17] += 3
        file["record/top_key"][2, 200] = 0  # beyond the window
    done = mpirun(1, "verify", tmp_path / "out.h5", "--json")
    assert done.code == 1
    failed = {check["name"]: check["text"] for check in json.loads(done.out)["checks"] if not check["passed"]}
    assert set(failed) == {
        "digest of /record/distance",
        "digest of /record/top_key",
        "rows of /record/distance",
        "rows of /record/top_key",
    }
    assert "at positions 17" in failed["rows of /record/distance"]
    assert "at positions 200" in failed["rows of /record/top_key"]


def test_what_would_record_nothing_or_be_ignored_is_refused(mpirun, job):
    path = job(20)
    for options, told in (
        (["record.rows=false"], "must be a table that asks for something"),
        (["record.sinks=0"], "must be a whole number of keys >= 1"),
        (["record.row=true"], "did you mean rows?"),
    ):
        done = mpirun(1, "run", path, *(word for option in options for word in ("--set", option)))
        assert done.code == 2
        assert told in done.err
        assert "Traceback" not in done.err


def test_plan_counts_its_memory(mpirun, job):
    path = job(LENGTH, options=SCORES)
    plain, more = (
        json.loads(mpirun(1, "plan", path, "--json", "--ranks", 1, *extra, cwd=ROOT).out)["plans"][0]["memory"]
        for extra in ([], ["--set", "record.rows=true"])
    )
    assert more["record"] == 4 * LENGTH * ((3 * 4 + 8) + (4 * 4 + 8))
    assert more["peak"] - plain["peak"] == more["record"]
