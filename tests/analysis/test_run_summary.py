import math
from pathlib import Path

import h5py
import pytest

import ringmpi
from ringmpi import analysis
from ringmpi.core.masking import Mask
from ringmpi.errors import StorageError
from ringmpi.storage.computed_by import write_computed_by
from tests.analysis.recorded_output import set_timeline, write_recorded
from tests.analysis.written import LENGTH, Case, write_run
from tests.storage.test_computed_by import COMPUTED

GRADIENTS = '[backward]\ngrad_output = "do"\n'


def test_a_summary_says_what_the_file_says(tmp_path):
    path = write_run(tmp_path, Case(sharding="striped", backward=GRADIENTS))
    set_timeline(path, attend_seconds=[[1, 2, 3], [1, 1, 1], [0, 0, 0]], wait_seconds=[[0, 0, 0], [0, 4, 1], [0, 0, 0]])
    found = analysis.summary(path)
    assert (found.ranks, found.nodes, found.hosts) == (3, 1, ("node",) * 3)
    assert (found.batch, found.heads, found.query_length, found.value_dim) == (1, 4, LENGTH, 3)
    assert (found.key_length, found.key_heads, found.head_dim) == (LENGTH, 2, 5)
    assert (found.dtype, found.versions, found.command_line) == ("float32", {"ringmpi": "0"}, "ringmpi run")
    assert found.options["ring.sharding"] == "striped"
    assert found.options["attention.mask"] == "causal"
    assert found.options["backward.grad_output"] == "do"
    assert found.pairs_asked == found.pairs_attended == 4 * Mask.causal().pairs(LENGTH, LENGTH)
    assert found.exact
    assert found.pass_seconds == {"forward": 8.0, "backward": 0.0}
    assert (found.attempts, found.recorded) == (1, ())
    assert math.isnan(found.seconds)  # this file has no times


def test_what_the_output_does_not_tell_is_none(tmp_path):
    found = analysis.summary(write_run(tmp_path, Case()))
    assert (found.key_length, found.key_heads, found.head_dim) == (None, None, None)
    assert (found.computed_by, found.cores, found.mask) == (None, None, "causal")


def test_what_was_decided_is_told(tmp_path):
    path = write_run(tmp_path, Case())
    with h5py.File(path, "r+") as file:
        write_computed_by(file, COMPUTED)
    found = analysis.summary(path)
    assert (found.key_length, found.key_heads, found.head_dim) == (12, 2, 8)
    assert (found.computed_by, found.cores, found.mask) == (COMPUTED, 7, "(causal & full)")
    rows = dict(found.table().rows)
    assert (rows["backend"], rows["schedule"], rows["threads of rank 1"]) == ("native (avx2), numpy", "ring", 4)


def test_a_pair_that_is_missing_shows(tmp_path):
    found = analysis.summary(write_run(tmp_path, Case(pairs_short=1)))
    assert not found.exact
    assert ("exact", "NO") in found.table().rows


def test_times_and_what_was_recorded(tmp_path):
    written = write_recorded(tmp_path)
    with h5py.File(written.path, "r+") as file:
        file["provenance"].attrs["started"] = "2026-01-02T10:00:00+00:00"
        file["provenance"].attrs["finished"] = "2026-01-02T11:01:30+01:00"
    found = analysis.summary(written.path)
    assert found.seconds == 90
    assert found.key_length == LENGTH
    assert found.recorded[:2] == ("/record/entropy", "/record/distance")
    assert len(found.recorded) == 10
    rows = dict(found.table().rows)
    assert rows["option ring.sharding"] == "contiguous"
    assert rows["rank 2"] == "node"
    assert "key_heads" not in rows


def test_a_configuration_that_is_no_toml_is_refused(tmp_path):
    path = write_run(tmp_path, Case())
    with h5py.File(path, "r+") as file:
        file["provenance"].attrs["configuration"] = "[[["
    with pytest.raises(StorageError, match="not valid TOML"):
        analysis.summary(path)


def test_names_load_on_first_use():
    assert set(analysis.__all__) <= set(dir(analysis))
    for name in analysis.__all__:
        assert getattr(analysis, name).__module__.startswith("ringmpi.analysis.")
    with pytest.raises(AttributeError, match="no attribute 'entropie'"):
        _ = analysis.entropie
    assert not {path.stem for path in Path(analysis.__file__).parent.glob("*.py")} & set(analysis.__all__)
    assert ringmpi.analysis is analysis
