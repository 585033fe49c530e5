"""`mpirun -n P ringmpi run` with what [record] records after the forward pass: exact, counted, verified, resumed."""

import json
from pathlib import Path

import h5py
import ml_dtypes
import numpy as np
import pytest

from ringmpi import Mask
from ringmpi.core.scoring import Scoring
from ringmpi.storage.inputs import Inputs
from ringmpi.storage.manifest import read_manifest
from ringmpi.storage.results import Results
from tests.backends.natives import BACKENDS
from tests.launched.test_run import passed
from tests.tolerances import assert_map

STOPPING = (str(Path(__file__).with_name("stopping.py")),)
STOPPED = 4
LENGTH, BLOCK = 211, 32
RECORD = f"[record]\nmap_block = {BLOCK}\nreceived = true\ntop_rows = [0, 17, 210]\ntop_keys = 5\n"
CAUSAL = '[attention]\nmask = "causal"\n'


def recorded(path):
    """All that was recorded after the forward pass, by name."""
    with h5py.File(path) as file:
        names = ("map", "received", "top_rows", "top_keys", "top_weights")
        return {name: file["record"][name][...] for name in names if name in file["record"]}


def check(tmp_path, mask, length=LENGTH, keys=LENGTH, block=BLOCK, **sinks):
    """The map and what keys receive are those of the formula; top keys are the largest of its weights."""
    with Inputs(tmp_path / "in.h5") as inputs, Results(tmp_path / "out.h5") as results:
        q, k = (inputs.array(name).rows(np.arange(n)) for name, n in (("q", length), ("k", keys)))
        late = results.account.late
        found = [
            results.late[f"/record/{name}"].rows(np.arange(n))
            for name, n in (("map", -(-length // block)), ("received", keys))
        ]
        batch = len(results.output.shape) == 4
    assert late.pairs_attended == late.pairs_asked == mask.pairs(length, keys) * q.shape[0] * q.shape[1]
    assert late.timeline.pairs_attended.sum() == late.pairs_asked
    assert_map(tuple(found), q, k, mask.allowed(length, keys), Scoring(q.shape[-1] ** -0.5), block, **sinks)
    assert batch == (recorded(tmp_path / "out.h5")["map"].ndim == 4)


@pytest.mark.parametrize(("ranks", "sharding"), [(1, "zigzag"), (2, "striped"), (3, "contiguous"), (3, "zigzag")])
def test_the_file_has_the_map_of_the_formula(mpirun, job, tmp_path, ranks, sharding):
    options = f'{CAUSAL}sink_logits = [0.5, 0.0, 2.0, -1.0]\n{RECORD}[ring]\nsharding = "{sharding}"\n'
    report = passed(mpirun(ranks, "run", job(LENGTH, options=options), "--json"))
    check(tmp_path, Mask.causal(), sink_logits=np.array([0.5, 0.0, 2.0, -1.0]))
    names = [check["name"] for check in report["certificate"]["checks"]]
    for name in ("pairs of the map pass", "sums of /record/map", "sums of /record/received", "rows of /record/map"):
        assert name in names
    found = recorded(tmp_path / "out.h5")
    assert found["top_rows"].tolist() == [0, 17, 210]
    assert found["top_keys"].shape == (4, 3, 5)
    assert (found["top_keys"][:, 0] == [0, -1, -1, -1, -1]).all()
    assert (np.diff(found["top_weights"], axis=-1) <= 0).all()
    assert mpirun(1, "verify", tmp_path / "out.h5", "--rows", "40").code == 0


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_dtype_on_other_lengths(mpirun, job, tmp_path, dtype, backend):
    options = f'[attention]\nmask = {{causal = "end"}}\n[backend]\nname = "{backend}"\n{RECORD}'
    passed(mpirun(2, "run", job(LENGTH, 300, dtype=dtype, options=options), "--json"))
    check(tmp_path, Mask.causal("end"), keys=300)


def test_one_quantity_alone_is_all_that_is_recorded(mpirun, job, tmp_path):
    for option, name in (("map_block = 64", "map"), ("received = true", "received"), ("top_rows = [3]", "top_rows")):
        path = job(LENGTH, options=f"{CAUSAL}[record]\nrows = false\n{option}\n")
        passed(mpirun(2, "run", path, "--force", "--json"))
        with h5py.File(tmp_path / "out.h5") as file:
            expected = {"top_rows", "top_keys", "top_weights"} if name == "top_rows" else {name}
            assert set(file["record"]) == expected
            assert ("timeline_map" in file) == (name != "top_rows")
            assert name != "map" or file["record/map"].attrs["block"] == 64


def test_a_virtual_layout_has_the_same_numbers(mpirun, job, tmp_path):
    path, found = job(LENGTH, options=CAUSAL + RECORD), []
    for layout in ("merged", "virtual"):
        passed(mpirun(3, "run", path, "--force", "--json", "--set", f'output.layout="{layout}"'))
        found.append(recorded(tmp_path / "out.h5"))
    for name, array in found[0].items():
        assert array.tobytes() == found[1][name].tobytes()


def test_rows_may_be_named_by_a_dataset_of_the_input(mpirun, job, tmp_path):
    options = f'{CAUSAL}[record]\ntop_rows = "chosen"\n'
    passed(mpirun(2, "run", job(LENGTH, options=options, extra={"chosen": np.array([4, 5])}), "--json"))
    assert recorded(tmp_path / "out.h5")["top_rows"].tolist() == [4, 5]


@pytest.mark.parametrize(
    ("record", "ring", "words"),
    [
        ("top_rows = [3, 211]", "", "there are 211 queries"),
        ("top_rows = [3, 2]", "", "ascending"),
        ('top_rows = "missing"', "", "missing"),
        ("map_block = 32", "reproducible = true", "[ring] reproducible asks for equal bits"),
    ],
)
def test_what_cannot_be_recorded_is_refused_by_name(mpirun, job, tmp_path, record, ring, words):
    path = job(LENGTH, options=f"{CAUSAL}[record]\nrows = false\n{record}\n[ring]\n{ring}\n")
    done = mpirun(2, "run", path)
    assert done.code in (2, 3)
    assert words in done.err
    assert done.err.count("ringmpi: error:") == 1
    assert not (tmp_path / "out.h5").exists()


def test_a_run_that_records_says_how_to_look_at_it(mpirun, job):
    path = job(LENGTH, options=CAUSAL + RECORD)
    assert "analyze" in mpirun(1, "run", path).out
    plain = mpirun(1, "run", job(LENGTH, options=CAUSAL), "--force").out
    assert "try next" in plain
    assert "analyze" not in plain


def test_a_damaged_map_is_found(mpirun, job, tmp_path):
    """Two entries of a row changed places: every sum is as it was."""
    passed(mpirun(2, "run", job(LENGTH, options=CAUSAL + RECORD), "--json"))
    with h5py.File(tmp_path / "out.h5", "r+") as file:
        row = file["record/map"][0, 6]
        row[[0, 1]] = row[[1, 0]]
        file["record/map"][0, 6] = row
    done = mpirun(1, "verify", tmp_path / "out.h5", "--rows", "all", "--json")
    assert done.code == 1
    failed = {check["name"] for check in json.loads(done.out)["checks"] if not check["passed"]}
    assert {"digest of /record/map", "rows of /record/map"} <= failed


@pytest.fixture
def kept(job, tmp_path):
    """A job with [checkpoint]."""

    def write(backward=False):
        extra = {"do": np.random.default_rng(2).standard_normal((4, LENGTH, 16)).astype(np.float32)}
        options = f'{CAUSAL}[backend]\nname = "numpy"\n{RECORD}[checkpoint]\ndirectory = "{tmp_path}/kept"\n'
        return job(LENGTH, options=options + ('[backward]\ngrad_output = "do"\n' if backward else ""), extra=extra)

    return write


def stage(tmp_path):
    """In which pass the newest generation is."""
    folder = max(path for path in (tmp_path / "kept").iterdir() if path.is_dir())
    return read_manifest(folder).progress["stage"]


@pytest.mark.parametrize(
    ("call", "in_pass", "ranks", "backward"),
    [(130, "map", 2, False), (130, "map", 3, True), (210, "backward", 2, True), (210, "backward", 3, True)],
)
def test_a_map_begins_anew_after_a_stop(mpirun, kept, tmp_path, call, in_pass, ranks, backward):
    """Stopped in the map pass, or after it: the run that goes on has all of it."""
    path = kept(backward)
    done = mpirun(2, "SIGTERM", 0, call, "run", path, program=STOPPING)
    assert done.code == STOPPED, done.err
    assert stage(tmp_path) == in_pass
    report = passed(mpirun(ranks, "NOTHING", 0, 0, "run", "--resume", path, "--json", program=STOPPING))
    assert report["pairs_attended"] == LENGTH * (LENGTH + 1) // 2 * 4
    check(tmp_path, Mask.causal())
