"""An export holds every number of the output, with names, coordinates and units that other programs read."""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray
import zarr

from ringmpi.core.dtypes import bfloat16
from ringmpi.errors import ConfigError, StorageError
from ringmpi.storage.bits import create_floats
from ringmpi.storage.digest import new_digest
from ringmpi.storage.export.variables import BOX_BYTES, box_shape, boxes, exported
from ringmpi.storage.export.writing import export_file
from ringmpi.storage.layout import dataset_layout
from ringmpi.storage.results import Results
from tests.analysis.written import Case, write_run
from tests.storage.test_lock import holder

UPSTREAM = '[backward]\ngrad_output = "do"'
CASES = [
    Case(),
    Case(dtype=np.float64, backward=UPSTREAM),
    Case(dtype=np.float16, batch=(2,)),
    Case(dtype=bfloat16, batch=(2,), backward=UPSTREAM),
    Case(virtual=True),
]
ENDINGS = {"npy": "", "zarr": ".zarr", "netcdf": ".nc"}
BLOCK = 16
RECORDS = {  # name -> shape, more attributes
    "entropy": ((4, 60), {}),
    "distance": ((4, 60), {}),
    "top_score": ((4, 60), {}),
    "top_key": ((4, 60), {}),
    "sinks": ((4, 60), {"keys": 4}),
    "map": ((4, 4, 4), {"block": BLOCK, "key_length": 60}),
    "received": ((4, 60), {}),
    "top_rows": ((3,), {}),
    "top_keys": ((4, 3, 2), {}),
    "top_weights": ((4, 3, 2), {}),
}


def with_records(path):
    """The same output with /record, as a run with [record] has it."""
    rng = np.random.default_rng(3)
    with h5py.File(path, "r+") as file:
        for name, (shape, more) in RECORDS.items():
            whole = name in ("top_key", "top_rows", "top_keys")
            numbers = rng.integers(0, 60, shape) if whole else rng.random(shape, np.float32)
            dataset = file.create_dataset(f"record/{name}", data=numbers)
            dataset_layout(dataset.name).describe(dataset)
            dataset.attrs.update({key: np.int64(value) for key, value in more.items()})
            digest = new_digest()
            digest.update(numbers.tobytes())
            dataset.attrs["blake2b"] = digest.hexdigest()
    return path


def in_output(path):
    """Every array of an output at its root and of /record, as numbers that NumPy knows."""
    with Results(path) as results:
        arrays = {
            array.name.strip("/"): array.rows(np.arange(array.length)).reshape(array.shape)
            for array in results.arrays
            if array.name.count("/") == 1
        }
    with h5py.File(path) as file:
        arrays |= {name: file[name][...] for name in ("shards", "key_shards") if name in file}
        arrays |= {name: each[...] for name, each in file.get("record", {}).items()}
    return {name: array.astype("f4") if array.dtype == bfloat16 else array for name, array in arrays.items()}


def in_npy(folder):
    contents = json.loads((folder / "contents.json").read_text())
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in contents["arrays"]}
    facts = {name: (tuple(each["dims"]), each["attributes"]) for name, each in contents["arrays"].items()}
    coordinates = {
        dim: np.arange(each["size"]) * each["start_step"][1] + each["start_step"][0]
        for dim, each in contents["coordinates"].items()
        if each["start_step"]
    }
    coordinates |= {dim: each["listed"] for dim, each in contents["coordinates"].items() if each["listed"]}
    return arrays, facts, coordinates, contents["attributes"]


def in_zarr(folder):
    group = zarr.open_group(folder, mode="r")
    found = {name: (array[...], array.metadata.dimension_names, dict(array.attrs)) for name, array in group.arrays()}
    return split(found, dict(group.attrs))


def in_netcdf(path):
    with h5py.File(path) as file:
        found = {
            name: (
                dataset[...],
                tuple(scales.keys()[0] for scales in dataset.dims) if not dataset.is_scale else (name,),
                dict(dataset.attrs),
            )
            for name, dataset in file.items()
            if not dataset.is_scale or dataset.dtype == np.int64
        }
        return split(found, dict(file.attrs))


def split(found, attributes):
    arrays = {name: each[0] for name, each in found.items() if each[1] != (name,)}
    facts = {name: each[1:] for name, each in found.items() if each[1] != (name,)}
    return arrays, facts, {name: each[0] for name, each in found.items() if each[1] == (name,)}, attributes


READERS = {"npy": in_npy, "zarr": in_zarr, "netcdf": in_netcdf}


@pytest.mark.parametrize("form", ENDINGS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_number_is_there(tmp_path, case, form):
    path = write_run(tmp_path, case)
    if not case.batch:
        with_records(path)
    done = export_file(path, tmp_path / f"export{ENDINGS[form]}")
    arrays, facts, coordinates, attributes = READERS[form](done.destination)
    expected = in_output(path)
    assert set(arrays) == set(expected) == set(done.arrays)
    for name, array in expected.items():
        wide = np.dtype("f4") if form == "netcdf" and array.dtype == np.float16 else array.dtype
        assert arrays[name].dtype == wide == done.dtypes[name]
        np.testing.assert_array_equal(arrays[name], array.astype(wide))
    batch = ("batch",) if case.batch else ()
    assert facts["output"][0][-3:] == ("head", "position", "channel")
    assert facts["output"][1]["units"] == "units of value"
    assert facts["output"][1]["long_name"].startswith("attention output")
    assert tuple(done.arrays["log_sum_exp"]) == (*batch, "head", "position")
    np.testing.assert_array_equal(coordinates["position"], np.arange(60))
    assert ("batch" in coordinates) == bool(case.batch)
    if case.backward:
        assert tuple(done.arrays["grad_key"]) == (*batch, "key_head", "key_position", "head_channel")
    with h5py.File(path) as file:
        assert attributes["configuration"] == file["provenance"].attrs["configuration"]
    assert [left.name for left in tmp_path.iterdir() if left.suffix in (".tmp", ".old")] == []


@pytest.mark.parametrize("form", ENDINGS)
def test_records_have_coordinates_of_their_own(tmp_path, form):
    path = with_records(write_run(tmp_path, Case()))
    done = export_file(path, tmp_path / f"export{ENDINGS[form]}")
    _, facts, coordinates, _ = READERS[form](done.destination)
    assert list(done.arrays["map"]) == ["head", "query_block", "key_block"]
    assert list(done.arrays["received"]) == ["head", "key_position"]
    assert list(done.arrays["top_weights"]) == ["head", "row", "nth"]
    np.testing.assert_array_equal(coordinates["key_block"], [0, 16, 32, 48])
    np.testing.assert_array_equal(coordinates["row"], in_output(path)["top_rows"])
    assert "first 4 keys" in facts["sinks"][1]["long_name"]
    assert "weights of the chosen queries" in facts["top_weights"][1]["long_name"]
    assert facts["sinks"][1]["keys"] == 4
    assert facts["entropy"][1]["units"] == "nats"


@pytest.mark.parametrize("form", ["netcdf", "zarr"])
def test_xarray_reads_it(tmp_path, form):
    path = with_records(write_run(tmp_path, Case(dtype=bfloat16, backward=UPSTREAM)))
    done = export_file(path, tmp_path / f"export{ENDINGS[form]}")
    options = {"engine": "h5netcdf"} if form == "netcdf" else {"engine": "zarr", "consolidated": False}
    with xarray.open_dataset(done.destination, **options) as data:
        expected = in_output(path)
        assert set(data.data_vars) == set(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(data[name].values, array)
        assert set(data.coords) >= {"head", "position", "channel", "key_position", "query_block", "key_block"}
        assert data["output"].attrs["stored_dtype"] == "bfloat16"
        row = data["output"].sel(head=2, position=37)
        np.testing.assert_array_equal(row.values, expected["output"][2, 37])
        chosen = data["top_keys"].sel(head=1, row=expected["top_rows"][2])
        np.testing.assert_array_equal(chosen.values, expected["top_keys"][1, 2])


@pytest.mark.parametrize("form", ENDINGS)
def test_memory_is_bounded_by_boxes_and_not_by_the_output(tmp_path, form):
    """tracemalloc knows what NumPy allocates; 96 MiB of output pass by in boxes of 16 MiB."""
    path, shape = write_run(tmp_path, Case()), (4, 48 << 10, 128)
    with h5py.File(path, "r+") as file:
        for name, more in {"output": shape, "log_sum_exp": shape[:2]}.items():
            attributes = {key: value for key, value in file[name].attrs.items() if key != "blake2b"}
            del file[name]
            file.create_dataset(name, shape=more, dtype="<f4", chunks=(1, 1 << 10, *more[2:])).attrs.update(
                attributes | {"blake2b": ""}
            )
        for name in ("output", "log_sum_exp"):
            file[name].attrs["blake2b"] = zeros_digest(file[name].size * 4)
    tracemalloc.start()
    try:
        export_file(path, tmp_path / f"export{ENDINGS[form]}")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * BOX_BYTES


def zeros_digest(count):
    digest = new_digest()
    for _ in range(count >> 16):
        digest.update(bytes(1 << 16))
    return digest.hexdigest()


def test_boxes_follow_each_other_in_c_order():
    numbers = np.arange(3 * 4 * 5).reshape(3, 4, 5)
    for box_bytes in (1, 8, 40, 48, 80, 160, 200, 10**9):
        extent = box_shape(numbers.shape, 8, box_bytes)
        assert np.prod(extent) * 8 <= max(box_bytes, 8)
        parts = [numbers[box].ravel() for box in boxes(numbers.shape, extent)]
        np.testing.assert_array_equal(np.concatenate(parts), numbers.ravel())
    assert box_shape((3, 4, 5), 8, 80) == (1, 2, 5)


@pytest.mark.parametrize("form", ENDINGS)
def test_an_array_that_was_changed_is_not_handed_on(tmp_path, form):
    path = write_run(tmp_path, Case())
    with h5py.File(path, "r+") as file:
        file["output"][2, 3, 1] += 1
    with pytest.raises(StorageError, match=r"dataset /output of .* was changed after it was written"):
        export_file(path, tmp_path / f"export{ENDINGS[form]}")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["input.h5", "out.h5"]


def test_a_missing_part_of_a_virtual_output_is_refused(tmp_path):
    path = write_run(tmp_path, Case(virtual=True))
    next(tmp_path.glob("out.h5.part-*-00001")).unlink()
    with pytest.raises(StorageError, match="1 of its 3 sources are missing"):
        export_file(path, tmp_path / "export")


@pytest.mark.parametrize("form", ENDINGS)
def test_what_is_there_is_replaced_only_by_force_and_only_an_export(tmp_path, form):
    path, target = write_run(tmp_path, Case()), tmp_path / f"export{ENDINGS[form]}"
    export_file(path, target)
    with pytest.raises(StorageError, match="exists and would be overwritten"):
        export_file(path, target)
    path.unlink()
    other = write_run(tmp_path, Case(size=2.0))
    export_file(other, target, force=True)
    np.testing.assert_array_equal(READERS[form](target)[0]["output"], in_output(other)["output"])
    if target.is_dir():
        (target / "thesis.tex").write_text("all of it")
        with pytest.raises(StorageError, match=r"holds thesis.tex, which no export has written"):
            export_file(path, target, force=True)


@pytest.mark.parametrize("form", ENDINGS)
def test_a_place_of_something_else_is_never_replaced(tmp_path, form):
    path, target = write_run(tmp_path, Case()), tmp_path / f"home{ENDINGS[form]}"
    if form == "netcdf":
        target.write_text("a letter")
    else:
        target.mkdir()
        (target / "letter").write_text("a letter")
    with pytest.raises(StorageError, match="is not an export of this format"):
        export_file(path, target, force=True)
    assert (target if form == "netcdf" else target / "letter").read_text() == "a letter"


@pytest.mark.parametrize("place", ["out.h5", ".", "link.nc"])
def test_the_output_itself_is_never_replaced(tmp_path, place):
    path = write_run(tmp_path, Case())
    (tmp_path / "link.nc").symlink_to(path)
    with pytest.raises(StorageError, match=r"is or holds the output .* itself"):
        export_file(path, tmp_path / place, form="netcdf", force=True)
    assert in_output(path)


def test_an_ending_that_tells_nothing_is_refused_with_those_that_do(tmp_path):
    path = write_run(tmp_path, Case())
    with pytest.raises(ConfigError, match=r"the suffix .csv stands for no format; expected .nc"):
        export_file(path, tmp_path / "export.csv")
    assert export_file(path, tmp_path / "export.csv", form="npy").form == "npy"


def test_an_input_is_refused(tmp_path):
    write_run(tmp_path, Case())
    with pytest.raises(StorageError, match="is not a ringmpi output file"):
        export_file(tmp_path / "input.h5", tmp_path / "export")


def test_too_little_space_is_said_before_the_work(tmp_path, monkeypatch):
    path = write_run(tmp_path, Case())
    monkeypatch.setattr("ringmpi.storage.export.writing.free_bytes", lambda _path: 100)
    with pytest.raises(StorageError, match=r"needs up to [\d,]+ bytes, but 100 bytes are free"):
        export_file(path, tmp_path / "export")


def test_without_zarr_it_says_what_to_install(tmp_path, monkeypatch):
    path = write_run(tmp_path, Case())
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(StorageError, match=r"pip install 'zarr>=3'"):
        export_file(path, tmp_path / "export.zarr")
    assert not (tmp_path / "export.zarr.tmp").exists()


@pytest.mark.parametrize("form", ENDINGS)
def test_of_two_exports_to_one_name_the_second_is_refused(tmp_path, form):
    """A process of its own holds the name: locks keep processes apart."""
    path, destination = write_run(tmp_path, Case()), tmp_path / f"export{ENDINGS[form]}"
    other = holder(destination)
    try:
        for force in (False, True):
            with pytest.raises(StorageError, match=rf"is being written by another run \(process {other.pid} on "):
                export_file(path, destination, force=force)
    finally:
        other.communicate()
    export_file(path, destination)
    assert not list(tmp_path.glob("export*.lock")) + list(tmp_path.glob("export*.tmp"))


def test_what_an_interrupted_export_left_is_named(tmp_path):
    path = write_run(tmp_path, Case())
    (tmp_path / "export.tmp").mkdir()
    with pytest.raises(StorageError, match=r"export.tmp is in the way: an unfinished export left it there"):
        export_file(path, tmp_path / "export")


def test_axes_that_disagree_are_refused(tmp_path):
    path = with_records(write_run(tmp_path, Case()))
    with h5py.File(path, "r+") as file:
        attributes = dict(file["record/received"].attrs)
        del file["record/received"]
        create_floats(file, "record/received", (3, 60), np.dtype("f4"))[...] = 1
        file["record/received"].attrs.update(attributes)
    with pytest.raises(StorageError, match="with the heads of the output"):
        export_file(path, Path(tmp_path) / "export")
    with h5py.File(path) as file, pytest.raises(StorageError, match="along head"):
        exported(path, file)
