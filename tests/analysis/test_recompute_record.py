"""`verify` of what a run has recorded: right where it is right, and each quantity found where it is not."""

from dataclasses import replace

import h5py
import numpy as np
import pytest

import ringmpi
from ringmpi import Recording
from ringmpi.analysis.verify import verify_file
from ringmpi.asking.question import question_of
from ringmpi.config import parse_config, resolved
from ringmpi.core.sharding import Sharding
from ringmpi.storage.inputs import Inputs, file_identity
from ringmpi.storage.merge import merge_shards
from ringmpi.storage.record_layout import RECORDED_ROWS
from ringmpi.storage.shards import shard_path, write_shard
from tests.analysis.written import Case, _account

LENGTH, EMPTY = 60, 40  # positions; queries from EMPTY on see no key
SINKS = [0.5, -1.0, 2.0, 0.0]
CONFIGURATION = f"""
[input]
file = "input.h5"
query = "q"
key = "k"
value = "v"
[attention]
mask = {{slices = "slices"}}
softcap = 3.0
alibi = [0.5, 0.25, 0.125, 0.0]
sink_logits = {SINKS}
[record]
sinks = 3
[output]
file = "out.h5"
"""


def write_run(folder, dtype, spoil=None, nan=False):
    """A run with [record] on two ranks, and its output."""
    rng = np.random.default_rng(7)
    with h5py.File("input.h5", "w") as file:
        for name, heads in {"q": 4, "k": 2, "v": 2}.items():
            file[name] = rng.standard_normal((heads, LENGTH, 5)).astype(dtype)
        file["slices"] = np.array([[0, EMPTY, 0, LENGTH, -LENGTH, 0]])
        if nan:
            file["k"][0, 20] = np.nan
    config = parse_config(CONFIGURATION)
    with Inputs("input.h5") as inputs:
        question, identity = question_of(config, inputs), file_identity("input.h5")
        arrays = [source.rows(np.arange(LENGTH))[0] for source in question.arrays.values()]
    problem, scoring = question.problem, question.problem.scoring
    out = ringmpi.attention(
        *arrays,
        mask=problem.mask,
        softcap=scoring.softcap,
        alibi_slopes=scoring.alibi_slopes,
        sink_logits=SINKS,
        record=Recording(3),
        ranks=2,
        backend="numpy",
    )
    record = dict(zip(RECORDED_ROWS, out.record.arrays, strict=True))
    if spoil:
        spoil(record)
    destination, sharding = folder / "out.h5", Sharding.contiguous(LENGTH, 2)
    parts = [shard_path(destination, rank) for rank in range(2)]
    for rank, part in enumerate(parts):
        own = sharding.positions(rank)
        held = {name: array[None][:, :, own] for name, array in record.items()}
        rows = {"output": out.output[None][:, :, own], "log_sum_exp": out.log_sum_exp[None][:, :, own]}
        write_shard(part, ranges=sharding.shards[rank], **rows, record=held)
    run = replace(_account(problem, Case(ranks=2), resolved(config), identity), first_keys=3)
    merge_shards(parts, destination, shapes=question.shapes, account=run)
    return destination


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def failed(certificate):
    return [check.name for check in certificate.checks if not check.passed]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("nan", [False, True], ids=["finite", "with nan"])
def test_a_right_record_passes(tmp_path, dtype, nan):
    certificate = verify_file(write_run(tmp_path, dtype, nan=nan), rows=LENGTH)
    assert failed(certificate) == []
    assert {f"rows of {name}" for name in RECORDED_ROWS} <= {check.name for check in certificate.checks}


@pytest.mark.parametrize("name", RECORDED_ROWS)
@pytest.mark.parametrize("row", [17, EMPTY + 3])
def test_each_quantity_is_found_where_it_is_wrong(tmp_path, name, row):
    """The digest is that of the wrong number: only the arithmetic tells. Row 43 sees no key."""

    def spoil(record):
        record[name][2, row] = 30 if name.endswith("top_key") else record[name].dtype.type(0.01) + (row != 17)

    certificate = verify_file(write_run(tmp_path, "f4", spoil), rows=LENGTH)
    assert failed(certificate) == [f"rows of {name}"]
    [check] = [check for check in certificate.checks if not check.passed]
    assert f"at positions {row}" in check.text


def test_a_row_that_claims_to_see_nothing_is_found(tmp_path):
    def spoil(record):
        record["/record/top_key"][0, 5] = -1

    assert failed(verify_file(write_run(tmp_path, "f4", spoil), rows=LENGTH)) == ["rows of /record/top_key"]


def test_a_key_that_is_named_among_scores_of_nan_is_found(tmp_path):
    """Row 30 of head 0 meets the key of NaN at 20: no key has the largest score."""

    def spoil(record):
        assert record["/record/top_key"][0, 30] == -1
        record["/record/top_key"][0, 30] = 7

    assert failed(verify_file(write_run(tmp_path, "f4", spoil, nan=True), rows=LENGTH)) == ["rows of /record/top_key"]
