from dataclasses import fields, replace

import h5py
import numpy as np
import pytest

from ringmpi.core.sharding import Sharding
from ringmpi.errors import ShapeError, StorageError
from ringmpi.storage.account import Account
from ringmpi.storage.digest import dataset_digest
from ringmpi.storage.layout import ATTRIBUTES, DATASETS
from ringmpi.storage.results import Results
from tests.storage.samples import BFLOAT16, bits_of, make_account, make_arrays, write_parts, write_results

LENGTH = 31


@pytest.fixture
def arrays(rng):
    return make_arrays(rng, (2, 3, LENGTH, 4), BFLOAT16)


@pytest.fixture
def path(tmp_path, arrays):
    return write_results(tmp_path / "out.h5", Sharding.zigzag(LENGTH, 4), *arrays)


def test_some_rows_of_all_heads_are_read(path, arrays):
    at = [30, 0, 7, 7]
    with Results(path) as results:
        assert np.array_equal(bits_of(results.output.rows(at)), bits_of(arrays[0][:, :, at]))
        assert np.array_equal(bits_of(results.log_sum_exp.rows(at)), bits_of(arrays[1][:, :, at]))


def test_records_come_back_equal(path):
    written = make_account(4)
    with Results(path) as results:
        assert results.account.provenance == written.provenance
        assert results.account.counts == written.counts
        for field in fields(written.timeline):
            found, given = (getattr(account.timeline, field.name) for account in (results.account, written))
            assert found.dtype == given.dtype
            assert np.array_equal(found, given)


def test_a_command_line_that_is_no_unicode_does_not_cost_the_result(tmp_path, arrays, monkeypatch):
    account = make_account(4)
    odd = replace(account, provenance=replace(account.provenance, command_line="ringmpi run d\udce9mo.toml"))
    monkeypatch.setattr("tests.storage.samples.make_account", lambda ranks: odd)
    with Results(write_results(tmp_path / "odd.h5", Sharding.zigzag(LENGTH, 4), *arrays)) as results:
        assert results.account.provenance.command_line == "ringmpi run d\\udce9mo.toml"


def test_records_of_thousands_of_ranks_fit(tmp_path, rng, monkeypatch):
    from ringmpi.storage.provenance import read_account, write_account

    with h5py.File(tmp_path / "x.h5", "w") as file:
        write_account(file, make_account(10_000, steps=2))
        assert read_account(file).provenance == make_account(10_000).provenance


def test_the_schema_lists_what_is_in_the_file_and_nothing_else(path):
    with h5py.File(path) as file:
        found = {}
        file.visititems(lambda name, entry: found.update({f"/{name}": entry}))
        datasets = {name for name, entry in found.items() if isinstance(entry, h5py.Dataset)}
        attributes = {(name, key) for name, entry in {"/": file, **found}.items() for key in entry.attrs}
        described = {(layout.path, key) for layout in DATASETS for key in ("axes", "unit", "meaning")}
        assert datasets == {layout.path for layout in DATASETS}
        assert attributes == {(layout.path, layout.name) for layout in ATTRIBUTES} | described
        for layout in DATASETS:
            axes = [axis for axis in layout.axes if axis != "(batch)"]
            assert file[layout.path].ndim in {len(axes), len(layout.axes)}
            assert file[layout.path].attrs["unit"] == layout.unit


def test_the_digest_holds_for_a_whole_file_read_in_slabs(path):
    with Results(path) as results:
        for source in (results.output, results.log_sum_exp):
            assert source.recorded_digest == dataset_digest(source) == dataset_digest(source, slab_bytes=13)


def test_the_digest_is_of_the_values_however_they_are_stored(tmp_path, rng):
    arrays = make_arrays(rng, (2, LENGTH, 4), "float32")
    path = write_results(tmp_path / "out.h5", Sharding.striped(LENGTH, 3), *arrays)
    with h5py.File(path, "r+") as file:
        digest = file["output"].attrs["blake2b"]
        del file["output"]
        file.create_dataset("output", data=arrays[0].astype(">f4"), chunks=(2, 7, 3), compression="gzip")
        file["output"].attrs["blake2b"] = digest
    with Results(path) as results:
        assert dataset_digest(results.output, slab_bytes=100) == digest


@pytest.mark.parametrize("name", ["output", "log_sum_exp"])
def test_the_digest_sees_one_bit_and_two_swapped_rows(path, name):
    def changed(change):
        with h5py.File(path, "r+") as file:
            kind, raw = file[name].id.get_type(), np.empty(file[name].shape, "u2" if name == "output" else "u4")
            file[name].id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, kind)
            file[name].id.write(h5py.h5s.ALL, h5py.h5s.ALL, change(raw.copy()), kind)
        with Results(path) as results:
            source = getattr(results, name)
            return dataset_digest(source) != source.recorded_digest, raw

    def flip(raw):
        raw[1, 2, 17] ^= 1
        return raw

    def swap(raw):
        raw[0, 0, [3, 4]] = raw[0, 0, [4, 3]]
        return raw

    differs, raw = changed(flip)
    assert differs
    assert not changed(lambda _: raw)[0]
    assert changed(swap)[0]


def _open(path):
    with Results(path):
        pytest.fail("opened")


@pytest.mark.parametrize("layout", DATASETS, ids=lambda layout: layout.path)
def test_a_missing_dataset_is_named(path, layout):
    with h5py.File(path, "r+") as file:
        del file[layout.path]
    with pytest.raises(StorageError, match=f"lacks {layout.path}"):
        _open(path)


@pytest.mark.parametrize("layout", ATTRIBUTES[2:], ids=lambda layout: f"{layout.path}@{layout.name}")
def test_a_missing_attribute_is_named(path, layout):
    with h5py.File(path, "r+") as file:
        del file[layout.path].attrs[layout.name]
    with pytest.raises(StorageError, match=f"lacks {layout.path}@{layout.name}"):
        _open(path)


def test_a_file_of_another_origin_is_refused(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["output"] = np.zeros((2, 3, 4))
    with pytest.raises(StorageError, match=r"x\.h5 is not a ringmpi output file .*None"):
        _open(tmp_path / "x.h5")


def test_a_shard_file_is_not_taken_for_an_output(tmp_path, arrays):
    with pytest.raises(StorageError, match="'ringmpi-shard'"):
        _open(write_parts(tmp_path / "o.h5", Sharding.contiguous(LENGTH, 1), *arrays)[0])


def test_a_later_layout_is_refused(path):
    with h5py.File(path, "r+") as file:
        file.attrs["schema_version"] = 3
    with pytest.raises(StorageError, match="layout version 3; this ringmpi reads version 2"):
        _open(path)


@pytest.mark.parametrize(("shape", "message"), [((2, 3, LENGTH - 1), "expected /output"), ((LENGTH,), "has 1 axes")])
def test_arrays_that_do_not_belong_together_are_refused(path, shape, message):
    with h5py.File(path, "r+") as file:
        del file["log_sum_exp"]
        file["log_sum_exp"] = np.zeros(shape, "f4")
        file["log_sum_exp"].attrs["blake2b"] = ""
    with pytest.raises(StorageError, match=message):
        _open(path)


def test_a_damaged_record_is_a_storage_error(path):
    with h5py.File(path, "r+") as file:
        file["provenance"].attrs["versions"] = "{"
    with Results(path) as results, pytest.raises(StorageError, match="provenance of"):
        _ = results.account


def test_a_refused_file_is_closed(path):
    with h5py.File(path, "r+") as file:
        del file["shards"]
    with pytest.raises(StorageError) as refused:
        _open(path)
    with h5py.File(path, "r+") as file:
        assert "output" in file, refused


def test_a_truncated_output_is_refused(path):
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StorageError, match="cut off"):
        _open(path)


def test_accounts_of_unequal_ranks_or_steps_are_refused():
    account = make_account(3)
    with pytest.raises(ShapeError, match="3 hosts and a ring order of 2"):
        Account(replace(account.provenance, ring_order=(0, 1)), account.timeline, account.counts)
    with pytest.raises(ShapeError, match=r"timeline.bytes_sent has shape \(3, 2\); expected \(3, 3\)"):
        Account(account.provenance, replace(account.timeline, bytes_sent=np.zeros((3, 2), np.int64)), account.counts)
    with pytest.raises(ShapeError, match=r"timeline.peak_memory_bytes has shape \(2,\)"):
        Account(account.provenance, replace(account.timeline, peak_memory_bytes=np.zeros(2, np.int64)), account.counts)
