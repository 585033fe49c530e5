"""Entropy, distance, sinks and received over position, against the dense weights."""

import subprocess
import sys
import tracemalloc

import h5py
import numpy as np
import pytest

from ringmpi import analysis
from ringmpi.analysis import profiles
from ringmpi.errors import ConfigError, StorageError
from ringmpi.storage.results import Results
from tests.analysis.recorded_output import FIRST_KEYS, write_recorded
from tests.analysis.written import LENGTH, Case, write_run

ROWS = ("entropy", "distance", "top_score", "top_key", "sinks")


@pytest.fixture
def causal(tmp_path):
    return write_recorded(tmp_path)


@pytest.fixture
def windowed(tmp_path):
    return write_recorded(tmp_path, window=5)


def dense(name, weights):
    apart = np.abs(np.arange(LENGTH)[:, None] - np.arange(LENGTH))
    return {
        "entropy": -(weights * np.log(np.where(weights > 0, weights, 1))).sum(axis=2),
        "distance": (weights * apart).sum(axis=2),
        "sinks": weights[:, :, :FIRST_KEYS].sum(axis=2),
        "received": weights.sum(axis=1),
    }[name]


@pytest.mark.parametrize("name", ["entropy", "distance", "sinks", "received"])
@pytest.mark.parametrize("bins", [1, 7, 60, 1000])
def test_bins_are_those_of_the_dense_weights(causal, name, bins):
    found, truth = getattr(analysis, name)(causal.path, bins=bins), dense(name, causal.weights)
    assert found.edges[0] == 0
    assert found.edges[-1] == LENGTH
    assert len(found.edges) == min(bins, LENGTH) + 1
    for b, (start, stop) in enumerate(zip(found.edges[:-1], found.edges[1:], strict=True)):
        part = truth[:, start:stop]
        np.testing.assert_allclose(found.mean[:, b], part.mean(axis=1))
        np.testing.assert_allclose(found.quantiles[:, :, b], np.quantile(part, found.levels, axis=1).T, atol=1e-15)
        assert (found.rows[:, b] == stop - start).all()
    np.testing.assert_allclose(found.overall, truth.mean(axis=1))
    assert found.heads == tuple(f"head {n}" for n in range(4))


def test_rows_without_keys_are_left_out(windowed):
    found, truth = analysis.entropy(windowed.path, bins=20), dense("entropy", windowed.weights)
    assert found.rows[:, 0].tolist() == [0] * 4  # the first three queries see no key
    assert np.isnan(found.mean[:, 0]).all()
    assert np.isnan(found.quantiles[:, :, 0]).all()
    np.testing.assert_allclose(found.overall, truth[:, 3:].mean(axis=1))
    uneven = analysis.entropy(windowed.path, bins=12)  # of the first five queries, two see keys
    assert (uneven.rows[:, 0] == 2).all()
    np.testing.assert_allclose(uneven.mean[:, 0], truth[:, 3:5].mean(axis=1))
    np.testing.assert_allclose(uneven.quantiles[:, 1, 0], np.median(truth[:, 3:5], axis=1))


def test_with_a_sink_logit_the_top_key_tells_which_rows_see_keys(windowed):
    with h5py.File(windowed.path, "r+") as file:
        file["log_sum_exp"][...] = 1.0
        group = file["provenance"]
        group.attrs["configuration"] = "[attention]\nsink_logits = [0.0, 0.0, 0.0, 0.0]\n"
    assert analysis.entropy(windowed.path, bins=20).rows[:, 0].tolist() == [0] * 4


def test_nan_is_not_taken_for_a_row_without_keys(causal):
    with h5py.File(causal.path, "r+") as file:
        file["record/entropy"][2, 30] = np.nan
        file["log_sum_exp"][2, 30] = np.nan
    found = analysis.entropy(causal.path, bins=60)
    assert np.isnan(found.mean[2, 30])
    assert found.rows[2, 30] == 1
    assert np.isnan(found.mean).sum() == 1


def test_a_batch_has_a_slab_for_each_head_of_each_entry(tmp_path):
    written = write_recorded(tmp_path, Case(batch=(2,), sharding="contiguous"))
    found = analysis.received(written.path, bins=10)
    assert found.heads[:5:4] == ("batch 0, head 0", "batch 1, head 0")
    truth = dense("received", written.weights).reshape(8, 10, 6).mean(axis=2)
    np.testing.assert_allclose(found.mean, truth)


def test_pieces_of_any_size_give_the_same(causal, monkeypatch):
    whole = analysis.entropy(causal.path, bins=9)
    for elements in (1, 13, 50):
        monkeypatch.setattr(profiles, "PIECE_ELEMENTS", elements)
        found = analysis.entropy(causal.path, bins=9)
        np.testing.assert_array_equal(found.quantiles, whole.quantiles)
        np.testing.assert_array_equal(found.mean, whole.mean)
        np.testing.assert_array_equal(found.overall, whole.overall)


def test_an_open_output_is_taken_as_it_is(causal):
    with Results(causal.path) as results:
        np.testing.assert_array_equal(analysis.entropy(results).mean, analysis.entropy(causal.path).mean)
        assert analysis.distance(results).unit == "positions"  # still open


def test_the_table_has_the_numbers_of_the_arrays(windowed):
    found = analysis.sinks(windowed.path, bins=6)
    assert found.keys == FIRST_KEYS
    columns, rows = found.table()
    assert columns == ("head", "start", "stop", "rows", "mean", "q10", "q50", "q90")
    assert len(rows) == 4 * 6
    assert rows[6 * 2 + 3] == ("head 2", 30, 40, 10, found.mean[2, 3], *found.quantiles[2, :, 3])


def test_what_was_not_recorded_is_refused_with_its_option(tmp_path):
    path = write_run(tmp_path, Case())
    with pytest.raises(analysis.NotRecordedError) as caught:
        analysis.entropy(path)
    assert str(caught.value) == f"{path} has no /record/entropy: run with [record] rows = true"
    assert caught.value.dataset == "/record/entropy"
    with pytest.raises(StorageError, match=r"no /record/received: run with \[record\] received = true"):
        analysis.received(path)


def test_a_changed_dataset_is_refused(causal):
    with h5py.File(causal.path, "r+") as file:
        del file["record/entropy"]
        file["record/entropy"] = np.zeros((3, LENGTH))
        file["record/entropy"].attrs["blake2b"] = "0"
    with pytest.raises(StorageError, match="entropy"):
        analysis.entropy(causal.path)


def test_what_is_no_path_is_refused_in_words():
    with pytest.raises(ConfigError, match="of type ndarray; expected the path of an output file"):
        analysis.entropy(np.zeros(3))


def test_files_that_are_no_outputs_are_refused(tmp_path):
    empty, foreign, cut = (tmp_path / name for name in ("empty.h5", "foreign.h5", "cut.h5"))
    empty.touch()
    with h5py.File(foreign, "w") as file:
        file["record/entropy"] = np.zeros((4, 8))
    cut.write_bytes(write_recorded(tmp_path).path.read_bytes()[:5000])
    for path in (empty, foreign, cut, tmp_path / "none.h5", tmp_path):
        with pytest.raises(StorageError):
            analysis.entropy(path)


def test_neither_mpi_nor_matplotlib_is_loaded(causal):
    program = (
        f"import sys; from ringmpi import analysis; analysis.entropy({str(causal.path)!r}); "
        f"analysis.slow_rank; sys.exit(', '.join({{'mpi4py', 'matplotlib', 'jinja2'}} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_memory_does_not_grow_with_the_output(causal, monkeypatch):
    """A file of 32 MiB a quantity is read with 2 MiB or so."""
    long = 1 << 20
    with h5py.File(causal.path, "r+") as file:
        for name in set(file["record"]) - set(ROWS):
            del file[f"record/{name}"]
        for name in ("output", "log_sum_exp", *(f"record/{name}" for name in ROWS)):
            kept, dtype = dict(file[name].attrs), file[name].dtype
            shape = (4, long, *file[name].shape[2:])
            del file[name]
            file.create_dataset(name, shape, dtype, chunks=(1, 1 << 16, *shape[2:]), fillvalue=1)
            file[name].attrs.update(kept)
    monkeypatch.setattr(profiles, "PIECE_ELEMENTS", 1 << 15)
    with Results(causal.path) as results:
        tracemalloc.start()
        found = analysis.entropy(results)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (found.mean == 1).all()
    assert found.rows.sum() == 4 * long
    assert peak < 4 << 20, f"{peak / 2**20:.1f} MiB"
