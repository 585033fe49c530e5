"""Sums of the late record, taken in parts: of whatever size these are, and read once."""

from collections import Counter

import h5py
import numpy as np
import pytest

from ringmpi.analysis import map_sums
from ringmpi.analysis.verify import verify_file
from ringmpi.storage.late_record import write_late_record
from ringmpi.storage.record_layout import RECEIVED, RECORDED_MAP
from ringmpi.storage.source import ArraySource
from tests.analysis.test_check_late import RECORD, changed, failed, late_record_of, scale
from tests.analysis.written import LENGTH, Case, write_run

SUMS = {"sums of /record/map", "sums of /record/received", "sums of /record/map and /record/received"}


@pytest.mark.parametrize(("rows", "blocks"), [(5, 2), (7, 1), (20, 100), (1, 1)])
def test_parts_of_any_size_have_the_same_sums(tmp_path, monkeypatch, rows, blocks):
    """Blocks have 7 positions: parts are smaller, larger, and end within one."""
    monkeypatch.setattr(map_sums, "ROWS_AT_ONCE", rows)
    monkeypatch.setattr(map_sums, "BLOCKS_AT_ONCE", blocks)
    assert failed(tmp_path, rows=1) == set()
    (tmp_path / "other").mkdir()
    assert SUMS - {"sums of /record/received"} <= failed(tmp_path / "other", changed(RECORDED_MAP, scale), rows=1)


def test_what_keys_receive_is_read_once_a_check(tmp_path, monkeypatch):
    """By parts, not by blocks of keys: there are 9 of these."""
    read, whole = Counter(), ArraySource.rows

    def counting(self, positions):
        read[self.name] += len(np.atleast_1d(positions))
        read[self.name, "times"] += 1
        return whole(self, positions)

    monkeypatch.setattr(ArraySource, "rows", counting)
    assert failed(tmp_path, rows=1) == set()
    assert read[RECEIVED, "times"] == 3, "two sums, and one key recomputed"
    assert read[RECEIVED] == 2 * LENGTH + 1


def test_sums_that_must_be_nan_are_said_to_be(tmp_path):
    """Query 13 lies in the second of 9 query blocks, and in what all keys before it receive."""

    def spoil_input(name, array):
        if name == "q":
            array[1, 13] = np.nan

    path = write_run(tmp_path, Case(attention=f'mask = "causal"\nscale = 0.5\n{RECORD}', spoil_input=spoil_input))
    with h5py.File(path, "r+") as file, np.errstate(invalid="ignore"):
        write_late_record(file, late_record_of(path, None))
    said = {check.name: check for check in verify_file(path, rows=1).checks if check.name.startswith("sums of ")}
    for name, unknown in zip(sorted(SUMS), (1, 2, 1), strict=True):
        assert said[name].passed
        assert said[name].text.endswith(f"; {unknown} are NaN, because of NaN or inf in the input")
        assert "nan is permitted" not in said[name].text
        assert np.isfinite(said[name].facts["permitted_error"])
