import json
import os

import h5py
import ml_dtypes
import numpy as np
import pytest

from ringmpi.errors import StorageError
from ringmpi.storage.bits import create_floats
from ringmpi.storage.tree import check_readable, json_able, read_tree

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "any.h5"


def entries(path):
    return {entry.path: entry for entry in read_tree(path)}


def test_things_come_in_the_order_of_their_numbers_each_before_what_is_in_it(path):
    with h5py.File(path, "w") as file:
        for name in ("layer10/q", "layer2/q", "layer2/k", "empty/deep/deeper/x", "a"):
            file[name] = np.zeros(1)
    found = [entry.path for entry in read_tree(path)]
    assert found == [
        "/", "/a", "/empty", "/empty/deep", "/empty/deep/deeper", "/empty/deep/deeper/x",
        "/layer2", "/layer2/k", "/layer2/q", "/layer10", "/layer10/q",
    ]  # fmt: skip


def test_dtypes_have_names_that_people_know(path):
    with h5py.File(path, "w") as file:
        create_floats(file, "bf", (2,), BFLOAT16)[...] = 0
        file["marked"] = np.zeros(2, np.uint16)
        file["marked"].attrs["ringmpi_dtype"] = "bfloat16"
        file["half"] = np.zeros(2, np.float16)
        file["big"] = np.zeros(2, ">f4")
        file["text"] = ["a", "b"]
        file["fixed"] = np.array([b"ab"])
        file["pair"] = np.zeros(2, [("re", "f4"), ("im", "f4")])
        file["truth"] = np.array([True])
        file["complex"] = np.zeros(2, np.complex64)
        file["long"] = np.zeros(2, np.longdouble)
        file["nothing"] = h5py.Empty("f4")
    found = {name: (entry.dtype, entry.shape) for name, entry in entries(path).items()}
    assert found["/bf"] == found["/marked"] == ("bfloat16", (2,))
    assert found["/half"] == ("float16", (2,))
    assert found["/big"] == ("float32 (big-endian)", (2,))
    assert found["/text"][0] == found["/fixed"][0] == "string"
    assert found["/pair"][0] == "compound (re, im)"
    assert found["/truth"][0] == "bool"
    assert found["/complex"][0] == "complex64"
    assert found["/long"][0] == np.dtype(np.longdouble).name
    assert found["/nothing"] == ("float32", None)


def test_how_a_dataset_lies_is_said(path, tmp_path):
    with h5py.File(tmp_path / "source.h5", "w") as file:
        file["x"] = np.zeros(4)
    with h5py.File(path, "w") as file:
        file["plain"] = np.zeros(4)
        file.create_dataset("packed", data=np.zeros((4, 6)), chunks=(2, 3), compression="gzip", fletcher32=True)
        layout = h5py.VirtualLayout((4,), "f8")
        layout[:] = h5py.VirtualSource(tmp_path / "source.h5", "x", (4,))
        file.create_virtual_dataset("seen", layout)
        file.create_dataset("out", (4,), "f8", external=[(tmp_path / "raw.bin", 0, 32)])[...] = 1
    found = entries(path)
    assert found["/plain"].storage == ""
    assert found["/packed"].storage == "chunks (2, 3), deflate, fletcher32"
    assert found["/seen"].storage == "virtual, 1 source files"
    assert found["/out"].storage == "in 1 other files"
    assert not any(entry.problem for entry in found.values())


def test_what_other_files_no_longer_have_is_a_problem(path, tmp_path):
    test_how_a_dataset_lies_is_said(path, tmp_path)
    (tmp_path / "source.h5").unlink()
    (tmp_path / "raw.bin").unlink()
    found = entries(path)
    assert "sources are missing" in found["/seen"].problem
    assert "raw.bin, which is missing" in found["/out"].problem
    assert found["/plain"].problem == ""


def test_links_are_followed_once_and_told_when_they_lead_nowhere(path):
    with h5py.File(path, "w") as file:
        file["a/x"] = np.zeros(3)
        file["a/back"] = file["/"]
        file["a/other_name"] = file["a/x"]
        file["soft"] = h5py.SoftLink("/a/x")
        file["lost"] = h5py.SoftLink("/nowhere")
        file["away"] = h5py.ExternalLink("gone.h5", "/y")
    found = entries(path)
    kinds = {name: entry.kind for name, entry in found.items()}
    assert kinds["/a/other_name"] == "dataset"  # the first of its names
    assert kinds["/a/x"] == kinds["/a/back"] == kinds["/soft"] == "link"
    assert found["/lost"].problem == "leads to /nowhere, which does not exist"
    assert (
        found["/away"].problem == "leads to /y in gone.h5, which does not exist" or found["/away"].kind == "unreadable"
    )


def test_a_damaged_header_hides_nothing_else(path):
    with h5py.File(path, "w", libver="latest") as file:
        file["good"] = np.zeros(3)
        file["wrong"] = np.zeros(3)
        address = h5py.h5o.get_info(file["wrong"].id).addr
    with path.open("r+b") as raw:
        raw.seek(address + 8)
        raw.write(b"\xff" * 16)
    found = entries(path)
    assert found["/wrong"].kind == "unreadable"
    assert found["/wrong"].problem
    assert (found["/good"].kind, found["/good"].shape) == ("dataset", (3,))


def test_attributes_of_any_kind_can_be_json(path):
    values = {
        "text": "d\u00e9mo", "bytes": np.bytes_(b"caf\xe9"), "nan": np.nan, "minus": -np.inf, "int": np.int64(1 << 60),
        "list": [1.5, 2.5], "long": np.zeros((5, 7), "f4"), "none": h5py.Empty("f8"), "truth": True,
        "complex": 1 + 2j,
    }  # fmt: skip
    with h5py.File(path, "w") as file:
        file.attrs.update(values)
        file["x"] = 0
        file.attrs["where"] = file["x"].ref
    found = entries(path)["/"].attributes
    json.dumps(found, allow_nan=False)
    assert found["text"] == "d\u00e9mo"
    assert found["bytes"] == "caf\\xe9"
    assert (found["nan"], found["minus"]) == ("nan", "-inf")
    assert (found["int"], found["truth"], found["none"]) == (1 << 60, True, None)
    assert found["list"] == [1.5, 2.5]
    assert found["long"] == "float32 [5, 7]"
    assert found["complex"] == "(1+2j)"


def test_numbers_within_lists_are_made_json_too():
    assert json_able(np.array([[np.inf, 1.0]])) == [["inf", 1.0]]


@pytest.mark.parametrize("options", [{}, {"chunks": (4, 4), "compression": "gzip", "fletcher32": True}])
def test_a_whole_dataset_is_readable(path, options):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.random.default_rng(0).standard_normal((16, 16)), **options)
        file["scalar"] = 3
        file["nothing"] = h5py.Empty("f4")
        file["short"] = np.zeros((0, 4))
    for name in ("/x", "/scalar", "/nothing", "/short"):
        check_readable(path, name)


def test_a_changed_byte_of_a_packed_dataset_is_found(path):
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", data=np.arange(64.0), chunks=(16,), compression="gzip", fletcher32=True)
        place = data.id.get_chunk_info(2)
    with path.open("r+b") as raw:
        raw.seek(place.byte_offset + place.size // 2)
        raw.write(b"\xff\xff\xff\xff")
    with pytest.raises(StorageError, match="cannot read .*dataset /x"):
        check_readable(path, "/x")


def test_a_name_that_is_no_unicode_is_shown(path):
    with h5py.File(path, "w") as file:
        h5py.h5g.create(file.id, b"caf\xe9")
    assert len(read_tree(path)) == 2


@pytest.mark.parametrize("content", [b"", b"not HDF5", os.urandom(1 << 12)])
def test_what_is_no_hdf5_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(StorageError, match="cannot open"):
        read_tree(path)
