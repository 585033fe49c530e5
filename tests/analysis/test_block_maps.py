"""The attention map, as it was recorded and exactly coarser, against the dense weights."""

import h5py
import numpy as np
import pytest

from ringmpi import analysis
from ringmpi.errors import ConfigError, StorageError
from tests.analysis.recorded_output import BLOCK, block_map, write_recorded
from tests.analysis.written import LENGTH, Case, write_run


@pytest.mark.parametrize("window", [None, 5])
def test_all_heads_as_they_were_recorded(tmp_path, window):
    written = write_recorded(tmp_path, window=window)
    found = analysis.recorded_map(written.path)
    np.testing.assert_allclose(found.weights, block_map(written.weights, BLOCK))
    assert found.block == BLOCK
    assert found.query_edges.tolist() == found.key_edges.tolist() == [*range(0, LENGTH, BLOCK), LENGTH]


def test_a_map_alone_says_how_many_keys_there_were(tmp_path):
    written = write_recorded(tmp_path)
    with h5py.File(written.path, "r+") as file:
        del file["record/received"]
    for cells, edges in ((256, [*range(0, LENGTH, BLOCK), LENGTH]), (2, [0, 35, LENGTH])):
        assert analysis.recorded_map(written.path, cells=cells).key_edges.tolist() == edges
    assert analysis.summary(written.path).key_length == LENGTH


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(("cells", "factor"), [(5, 2), (4, 3), (3, 3), (2, 5), (1, 9)])
def test_coarser_maps_are_those_of_larger_blocks(tmp_path, window, cells, factor):
    written = write_recorded(tmp_path, window=window)  # with a window, some rows of the first block see no key
    found = analysis.recorded_map(written.path, cells=cells)
    np.testing.assert_allclose(found.weights, block_map(written.weights, factor * BLOCK), atol=1e-15)
    assert found.query_edges.tolist() == [*range(0, LENGTH, factor * BLOCK), LENGTH]
    assert max(found.weights.shape[1:]) <= cells


def test_one_head_and_the_mean_of_all(tmp_path):
    written = write_recorded(tmp_path, Case(batch=(2,), sharding="contiguous"))
    truth = block_map(written.weights, BLOCK)
    one, mean = analysis.recorded_map(written.path, 6), analysis.recorded_map(written.path, "mean")
    np.testing.assert_allclose(one.weights, truth[6:7])
    assert one.heads == ("batch 1, head 2",)
    np.testing.assert_allclose(mean.weights, truth.mean(axis=0)[None])
    assert mean.heads == ("mean of all heads",)


def test_rows_sum_to_one(tmp_path):
    written = write_recorded(tmp_path)
    for cells in (1, 4, 256):
        found = analysis.recorded_map(written.path, cells=cells)
        np.testing.assert_allclose(found.weights.sum(axis=2), 1)


@pytest.mark.parametrize("slab", [-1, 4, "median"])
def test_a_slab_that_is_not_there_is_refused(tmp_path, slab):
    written = write_recorded(tmp_path)
    with pytest.raises(ConfigError, match="slab = "):
        analysis.recorded_map(written.path, slab)


def test_which_rows_see_keys_must_be_known_to_coarsen_with_sink_logits(tmp_path):
    written = write_recorded(tmp_path)
    with h5py.File(written.path, "r+") as file:
        file["provenance"].attrs["configuration"] = "[attention]\nsink_logits = [0.0, 0.0, 0.0, 0.0]\n"
        for name in ("entropy", "distance", "top_score", "top_key", "sinks"):
            del file[f"record/{name}"]
    assert analysis.recorded_map(written.path).weights.shape == (4, 9, 9)
    with pytest.raises(analysis.NotRecordedError, match="top_key: run with"):
        analysis.recorded_map(written.path, cells=3)


def test_a_run_without_a_map_is_refused(tmp_path):
    path = write_run(tmp_path, Case())
    with pytest.raises(StorageError, match=r"has no /record/map: run with \[record\] map_block = 256"):
        analysis.recorded_map(path)


def test_the_table_leaves_out_cells_without_weight(tmp_path):
    found = analysis.recorded_map(write_recorded(tmp_path).path)
    columns, rows = found.table()
    assert columns == ("head", "query_start", "query_stop", "key_start", "key_stop", "weight")
    assert len(rows) == 4 * 45  # a causal map of 9 x 9 blocks
    assert rows[0] == ("head 0", 0, 7, 0, 7, found.weights[0, 0, 0])
    assert rows[-1] == ("head 3", 56, 60, 56, 60, found.weights[3, 8, 8])
