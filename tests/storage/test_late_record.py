"""What was recorded after the forward pass, in a file: written with digests and meanings, and read back."""

import hashlib

import h5py
import numpy as np
import pytest

from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.errors import StorageError
from ringmpi.storage.account import LateRecord, PassTimeline
from ringmpi.storage.late_record import read_late_record, write_late_record
from ringmpi.storage.map_layout import MAP_TIMELINE, MAP_TIMELINE_ATTRIBUTES, MAP_TIMELINE_DATASETS
from ringmpi.storage.record_layout import (
    MAP_GROUP,
    RECEIVED,
    RECEIVED_GROUP,
    RECORDED_MAP,
    TOP_GROUP,
    TOP_KEYS,
    TOP_ROWS,
    TOP_WEIGHTS,
)
from ringmpi.storage.results import Results
from tests.analysis.written import Case, write_run

FLOATS = (RECORDED_MAP, RECEIVED, TOP_WEIGHTS)
GROUPS = {
    RECORDED_MAP: MAP_GROUP,
    RECEIVED: RECEIVED_GROUP,
    TOP_ROWS: TOP_GROUP,
    TOP_KEYS: TOP_GROUP,
    TOP_WEIGHTS: TOP_GROUP,
}


def late_record(batch=(), order="<"):
    rng = np.random.default_rng(0)
    shapes = {RECORDED_MAP: (4, 9, 9), RECEIVED: (4, 60), TOP_WEIGHTS: (4, 3, 5)}
    arrays = {name: rng.random((*batch, *shape)).astype(f"{order}f4") for name, shape in shapes.items()}
    arrays[TOP_ROWS] = np.array([0, 13, 59])
    arrays[TOP_KEYS] = rng.integers(-1, 60, (*batch, 4, 3, 5))
    seconds, counts = rng.random((3, 3)), rng.integers(0, 9, (3, 3))
    return LateRecord(PassTimeline(*[seconds] * 3, *[counts] * 3), 17, 17, arrays, 7, 60)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_arrays_are_written_with_digests_and_meanings(tmp_path, batch, order):
    written = late_record(batch, order)
    with h5py.File(tmp_path / "out.h5", "w") as file:
        write_late_record(file, written)
        assert (file[RECORDED_MAP].attrs["block"], file[RECORDED_MAP].attrs["key_length"]) == (7, 60)
        for name, array in written.arrays.items():
            stored = file[name][...]
            np.testing.assert_array_equal(stored, array)
            assert stored.dtype.str[0] == "<"
            assert file[name].attrs["blake2b"] == hashlib.blake2b(stored.tobytes(), digest_size=32).hexdigest()
            layout = next(layout for layout in GROUPS[name].datasets if layout.path == name)
            assert (file[name].attrs["meaning"], file[name].attrs["unit"]) == (layout.meaning, layout.unit)
            assert stored.ndim == len(layout.axes) - (not batch and name != TOP_ROWS)
        assert {layout.path for layout in MAP_TIMELINE_DATASETS} == {f"{MAP_TIMELINE}/{n}" for n in file[MAP_TIMELINE]}
        assert {a.name for a in MAP_TIMELINE_ATTRIBUTES} == set(file[MAP_TIMELINE].attrs)


def test_what_the_pass_says_of_itself_is_read_back(tmp_path):
    written = late_record()
    with h5py.File(tmp_path / "out.h5", "w") as file:
        assert read_late_record(file) is None
        write_late_record(file, written)
        found = read_late_record(file)
    assert (found.pairs_asked, found.pairs_attended, found.arrays) == (17, 17, {})
    for name in PassTimeline.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(found.timeline, name), getattr(written.timeline, name))


def test_an_output_gives_its_arrays_by_name(tmp_path):
    path, written = write_run(tmp_path, Case()), late_record()
    with h5py.File(path, "r+") as file:
        write_late_record(file, written)
    with Results(path) as results:
        assert set(results.late) == {*FLOATS, TOP_KEYS}
        for name in FLOATS:
            found = results.late[name]
            assert found.dtype == accumulate_dtype(np.dtype(np.float32))
            np.testing.assert_array_equal(found.rows(np.arange(found.length))[0], written.arrays[name])
        assert results.account.late.pairs_attended == 17


@pytest.mark.parametrize("lost", [f"{MAP_TIMELINE}/wait_seconds", TOP_WEIGHTS])
def test_a_part_that_is_missing_is_named(tmp_path, lost):
    path = write_run(tmp_path, Case())
    with h5py.File(path, "r+") as file:
        write_late_record(file, late_record())
        del file[lost]
    with pytest.raises(StorageError, match=f"lacks {lost}"), Results(path):
        pass


def test_rows_alone_have_no_timeline(tmp_path):
    with h5py.File(tmp_path / "out.h5", "w") as file:
        write_late_record(file, LateRecord(None, arrays={TOP_ROWS: np.array([3])}))
        assert MAP_TIMELINE not in file
        assert read_late_record(file) is None
