import h5py
import numpy as np
import pytest

from ringmpi import analysis
from ringmpi.errors import ConfigError, StorageError
from tests.analysis.recorded_output import TOP_ROWS, K, write_recorded
from tests.analysis.written import Case, write_run


def test_keys_and_weights_are_those_of_the_dense_weights(tmp_path):
    written = write_recorded(tmp_path)
    found = analysis.top_keys(written.path)
    assert found.rows.tolist() == list(TOP_ROWS)
    assert found.keys.shape == (4, 3, K)
    for h, i, n in np.ndindex(*found.keys.shape):
        row = written.weights[h, TOP_ROWS[i]]
        if n < np.count_nonzero(row):
            assert row[found.keys[h, i, n]] == found.weights[h, i, n] == np.sort(row)[-1 - n]
        else:
            assert (found.keys[h, i, n], found.weights[h, i, n]) == (-1, 0)
    assert analysis.top_keys(written.path, 2).keys.tolist() == found.keys[2:3].tolist()


def test_the_table_has_the_keys_that_there_are(tmp_path):
    written = write_recorded(tmp_path)
    columns, rows = analysis.top_keys(written.path, 1).table()
    assert columns == ("head", "query", "place", "key", "weight")
    assert rows[0] == ("head 1", 0, 0, 0, 1.0)  # the first query of a causal mask sees itself alone
    assert len(rows) == 1 + K + K


def test_a_row_that_has_met_nan_has_no_keys_and_no_weights(tmp_path):
    written = write_recorded(tmp_path)
    with h5py.File(written.path, "r+") as file:
        file["record/top_keys"][2, 1], file["record/top_weights"][2, 1] = -1, np.nan
    found = analysis.top_keys(written.path)
    assert np.argwhere(np.isnan(found.weights)).tolist() == [[2, 1, n] for n in range(K)]
    assert len(found.table()[1]) == len(analysis.top_keys(written.path, 0).table()[1]) * 4 - K


def test_a_run_without_top_rows_is_refused(tmp_path):
    path = write_run(tmp_path, Case())
    with pytest.raises(analysis.NotRecordedError, match=r"run with \[record\] top_rows = "):
        analysis.top_keys(path)


def test_what_does_not_fit_is_refused_by_name(tmp_path):
    written = write_recorded(tmp_path)
    with pytest.raises(ConfigError, match="slab = 4"):
        analysis.top_keys(written.path, 4)
    with h5py.File(written.path, "r+") as file:
        kept = dict(file["record/top_rows"].attrs)
        del file["record/top_rows"]
        file["record/top_rows"] = np.arange(4)
        file["record/top_rows"].attrs.update(kept)
    with pytest.raises(StorageError, match=r"have \(3, 5\), \(3, 5\) and 4 rows"):
        analysis.top_keys(written.path)
