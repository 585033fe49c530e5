"""Inputs that are no HDF5 file: .npy files in a directory, .npz archives, Zarr stores."""

import builtins
import importlib
import os

import numpy as np
import pytest

from ringmpi.errors import StorageError
from ringmpi.storage.inputs import Inputs, file_identity
from tests.storage.samples import BFLOAT16, DTYPES, any_bits, bits_of

LENGTHS = np.array([3, 4, 13], np.int32)


@pytest.fixture
def arrays(rng):
    """Arrays of every dtype, two byte orders and two memory orders, by name."""
    found = {str(dtype): any_bits(rng, (2, 20, 4), dtype) for dtype in DTYPES}
    found["swapped"] = any_bits(rng, (2, 3, 20, 4), ">f4")
    found["fortran"] = np.asfortranarray(any_bits(rng, (2, 20, 4), "f8"))
    return found


def npy(folder, arrays):
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder, "{}.npy"


def npz(folder, arrays):
    path = folder.with_suffix(".npz")
    np.savez(path, **arrays)
    return path, "{}"


def zarr(folder, arrays):
    store = importlib.import_module("zarr").open_group(folder, mode="w")
    for name, array in arrays.items():
        if array.dtype == BFLOAT16:
            store.create_array(f"in/{name}", data=array.view(np.uint16)).attrs["ringmpi_dtype"] = "bfloat16"
        elif array.ndim < 3:
            store.create_array(f"in/{name}", data=array)
        else:
            lead = (1,) * (array.ndim - 2)
            boxes, shards = ((2, 4), (*lead, 4, 4)) if name == "float16" else ((4, 4), None)
            store.create_array(f"in/{name}", data=array, chunks=(*lead, *boxes), shards=shards)
    return folder, "in/{}"


FORMS = [npy, npz, zarr]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("slab_bytes", [100, 1 << 20])
def test_every_bit_is_read(tmp_path, arrays, form, slab_bytes):
    path, names = form(tmp_path / "in", arrays)
    ranges = [range(1, 9, 3), range(15, 20)]
    with Inputs(path) as inputs:
        for name, array in arrays.items():
            source = inputs.array(names.format(name))
            out = np.empty((*source.full_shape[:2], 8, 4), source.dtype)
            source.read(ranges, out, slab_bytes=slab_bytes)
            expected = array.reshape(-1, *array.shape[-3:])[:, :, [1, 4, 7, *range(15, 20)]]
            assert np.array_equal(bits_of(out), bits_of(expected.astype(source.dtype)))
            assert source.dtype.isnative


@pytest.mark.parametrize("form", FORMS)
def test_vectors_and_names_are_read(tmp_path, form):
    path, names = form(tmp_path / "in", {"lengths": LENGTHS, "slopes": np.array([0.5, 0.25], ">f4")})
    with Inputs(path) as inputs:
        assert inputs.names() == [names.format("lengths"), names.format("slopes")]
        found = inputs.read_vector(names.format("lengths"))
        assert (found.dtype, found.tolist()) == (np.int64, [3, 4, 13])
        assert inputs.read_vector(names.format("slopes")).tolist() == [0.5, 0.25]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_missing_or_no_float_is_refused(tmp_path, form):
    path, names = form(tmp_path / "in", {"query": LENGTHS.reshape(1, 1, 3)})
    with Inputs(path) as inputs:
        with pytest.raises(StorageError, match="Did you mean .*query"):
            inputs.array(names.format("qeury"))
        with pytest.raises(StorageError, match="query.* holds int32; expected float16"):
            inputs.array(names.format("query"))


def test_an_array_of_zarr_is_inflated_by_whole_boxes(tmp_path, arrays):
    path, names = zarr(tmp_path / "in", arrays)
    with Inputs(path) as inputs:
        for name in ("float32", "float16"):
            assert inputs.array(names.format(name)).rows_touched([range(5, 6)]) == 4


def test_a_single_npy_file_is_sent_to_its_directory(tmp_path, arrays):
    folder, _ = npy(tmp_path / "in", arrays)
    with (
        pytest.raises(StorageError, match=r'Give the directory .*query = "float32\.npy"'),
        Inputs(folder / "float32.npy"),
    ):
        pass


def test_a_file_outside_the_directory_is_not_read(tmp_path, arrays):
    folder, _ = npy(tmp_path / "in", arrays)
    np.save(tmp_path / "outside.npy", arrays["float32"])
    with Inputs(folder) as inputs, pytest.raises(StorageError, match="no dataset"):
        inputs.array("../outside.npy")


def test_a_directory_of_other_things_is_refused(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(StorageError, match="neither .npy files nor a Zarr store"), Inputs(tmp_path):
        pass


@pytest.mark.parametrize(
    ("content", "found"),
    [(b"", "EOF|No data|empty"), (b"hello", "pickled"), (b"\x93NUMPY\x01\x00v\x00{", "EOF|expected")],
)
def test_a_damaged_npy_file_is_named(tmp_path, content, found):
    (tmp_path / "q.npy").write_bytes(content)
    with Inputs(tmp_path) as inputs, pytest.raises(StorageError, match=rf"q\.npy: .*({found}).*complete \.npy file"):
        inputs.array("q.npy")


def test_a_truncated_npy_file_is_named(tmp_path, arrays):
    folder, _ = npy(tmp_path / "in", arrays)
    os.truncate(folder / "float32.npy", 200)
    with Inputs(folder) as inputs, pytest.raises(StorageError, match=r"float32\.npy"):
        inputs.array("float32.npy")


def test_objects_are_never_unpickled(tmp_path):
    np.save(tmp_path / "o.npy", np.array([{}], object))
    np.savez(tmp_path / "o.npz", o=np.array([{}], object))
    with Inputs(tmp_path) as inputs, pytest.raises(StorageError, match="objects"):
        inputs.array("o.npy")
    with Inputs(tmp_path / "o.npz") as inputs, pytest.raises(StorageError, match="Python objects"):
        inputs.array("o")


def test_a_compressed_archive_is_refused_with_what_to_do(tmp_path, arrays):
    np.savez_compressed(tmp_path / "in.npz", q=arrays["float32"])
    with Inputs(tmp_path / "in.npz") as inputs, pytest.raises(StorageError, match=r"numpy\.savez instead"):
        inputs.array("q")


def test_a_damaged_archive_is_named(tmp_path):
    (tmp_path / "in.npz").write_bytes(b"hello")
    with pytest.raises(StorageError, match=r"in\.npz: File is not a zip file"), Inputs(tmp_path / "in.npz"):
        pass


def test_without_the_library_a_zarr_store_says_what_to_install(tmp_path, arrays, monkeypatch):
    path, _ = zarr(tmp_path / "in", arrays)
    monkeypatch.setattr(importlib, "import_module", lambda name: builtins.__import__("absent_" + name))
    with pytest.raises(StorageError, match=r"pip install 'zarr>=3'"), Inputs(path):
        pass


@pytest.mark.parametrize("form", FORMS)
def test_identity_sees_a_change_inside(tmp_path, arrays, form):
    path, _ = form(tmp_path / "in", arrays)
    before = file_identity(path)
    changed = max((f for f in path.rglob("*") if f.is_file()), key=str) if path.is_dir() else path
    os.utime(changed, ns=(1, before["mtime_ns"] + 1))
    assert file_identity(path) == before | {"mtime_ns": before["mtime_ns"] + 1}
    with changed.open("ab") as file:
        file.write(b"x")
    assert file_identity(path)["size_bytes"] == before["size_bytes"] + 1
