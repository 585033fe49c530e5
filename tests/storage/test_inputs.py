import os

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringmpi.errors import ShapeError, StorageError
from ringmpi.storage.bits import create_floats, write_bits
from ringmpi.storage.inputs import Inputs
from tests.storage.samples import BFLOAT16, any_bits, bits_of

LENGTH = 53
STORED = {
    "plain": {"dtype": "<f4"},
    "big_endian": {"dtype": ">f8"},
    "half": {"dtype": "<f2"},
    "half_big_endian": {"dtype": ">f2"},
    "gzip": {"dtype": "<f2", "chunks": (1, 8, 4), "compression": "gzip", "shuffle": True},
    "odd_chunks": {"dtype": ">f4", "chunks": (2, 9, 3), "compression": "gzip", "fletcher32": True},
    "resizable": {"dtype": "<f8", "chunks": (3, 64, 4), "maxshape": (None, None, 4)},
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A file with the same kind of array in every form, and the arrays."""
    rng = np.random.default_rng(5)
    path = tmp_path_factory.mktemp("inputs") / "in.h5"
    arrays = {name: any_bits(rng, (3, LENGTH, 4), options["dtype"]) for name, options in STORED.items()}
    with h5py.File(path, "w") as file:
        for name, options in STORED.items():
            file.create_dataset(
                f"group/{name}", data=arrays[name], **{k: v for k, v in options.items() if k != "dtype"}
            )
        arrays["bfloat16"], arrays["marked"] = (any_bits(rng, (2, 3, LENGTH, 4), BFLOAT16) for _ in range(2))
        dataset = create_floats(file, "/group/bfloat16", arrays["bfloat16"].shape, BFLOAT16)
        write_bits(dataset, (0, 0, 0, 0), bits_of(arrays["bfloat16"]))
        file["group/marked"] = bits_of(arrays["marked"])
        file["group/marked"].attrs["ringmpi_dtype"] = "bfloat16"
        file["lengths"] = np.array([5, 7, 41], ">u4")
        file["slices"] = np.arange(12).reshape(2, 6)
        file["slopes"] = np.array([0.5, 0.25], "f4")
        file["huge"] = np.array([1 << 63], np.uint64)
        file["scalar"] = 3
        file["null"] = h5py.Empty("f4")
    return path, arrays


range_lists = st.lists(
    st.builds(
        lambda start, count, step: range(start, min(LENGTH, start + count * step), step),
        *[st.integers(0, LENGTH)] * 2,
        st.integers(1, 9),
    ),
    max_size=5,
)


@pytest.mark.parametrize("name", [*STORED, "bfloat16", "marked"])
@settings(max_examples=25)
@given(ranges=range_lists, slab_bytes=st.sampled_from([1, 100, 1000, 1 << 20]))
def test_read_gives_the_rows_of_the_ranges_in_their_order(stored, name, ranges, slab_bytes):
    path, arrays = stored
    array = arrays[name] if arrays[name].ndim == 4 else arrays[name][None]
    positions = np.array([p for r in ranges for p in r], int)
    with Inputs(path) as inputs:
        source = inputs.array(f"group/{name}")
        out = np.empty((*array.shape[:2], len(positions), 4), source.dtype)
        source.read(ranges, out, slab_bytes=slab_bytes)
    assert source.dtype == array.dtype.newbyteorder("=")
    assert source.dtype.isnative
    assert np.array_equal(bits_of(out), bits_of(array[:, :, positions].astype(source.dtype)))


def test_source_says_what_is_stored(stored):
    with Inputs(stored[0]) as inputs:
        flat, full = inputs.array("/group/gzip"), inputs.array("group/bfloat16")
        assert (flat.name, flat.shape, flat.ndim, flat.length) == ("/group/gzip", (3, LENGTH, 4), 3, LENGTH)
        assert (full.shape, full.ndim, full.dtype) == ((2, 3, LENGTH, 4), 4, BFLOAT16)


def test_read_fills_arrays_of_any_strides(stored):
    path, arrays = stored
    out = np.empty((1, LENGTH, 3, 4), np.float32).transpose(0, 2, 1, 3)
    with Inputs(path) as inputs:
        inputs.array("group/plain").read([range(LENGTH)], out)
    assert np.array_equal(bits_of(out[0]), bits_of(arrays["plain"]))


@given(positions=st.lists(st.integers(0, LENGTH - 1), max_size=12))
def test_rows_come_in_the_order_asked_repeats_too(stored, positions):
    path, arrays = stored
    with Inputs(path) as inputs:
        rows = inputs.array("group/gzip").rows(positions)
    assert np.array_equal(bits_of(rows[0]), bits_of(arrays["gzip"][:, np.array(positions, int)]))


def test_rows_far_apart_are_not_read_with_all_between(tmp_path, monkeypatch):
    length = 1 << 15
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.zeros((1, length, 4), "f4")
    read = []
    monkeypatch.setattr(
        "ringmpi.storage.source.read_bits", lambda d, start, count, bits: (read.append(count), np.zeros(count, bits))[1]
    )
    with Inputs(tmp_path / "x.h5") as inputs:
        inputs.array("x").rows([0, 1, length // 2, length - 1])
    assert [count[1] for count in read] == [2, 1, 1]


def test_a_strided_range_is_read_as_contiguous_slabs_of_bounded_size(stored, monkeypatch):
    from ringmpi.storage import source as module

    read, original = [], module.read_bits
    monkeypatch.setattr(
        module, "read_bits", lambda d, start, count, bits: (read.append(count), original(d, start, count, bits))[1]
    )
    with Inputs(stored[0]) as inputs:
        inputs.array("group/plain").read([range(0, LENGTH, 5)], np.empty((1, 3, 11, 4), "f4"), slab_bytes=160)
    assert max(np.prod(count) * 4 for count in read) <= 160
    assert sum(count[1] for count in read) >= 3 * (LENGTH - 3 - 6 * 4)
    assert len(read) == 3 * 6


def test_a_compressed_box_is_inflated_once(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((2, 100, 4), "f4"), chunks=(1, 10, 4), compression="gzip")
    boxes = []
    monkeypatch.setattr(
        "ringmpi.storage.source.read_bits",
        lambda d, start, count, bits: (
            boxes.append((start[0], start[1] // 10, (start[1] + count[1] - 1) // 10)),
            np.zeros(count, bits),
        )[1],
    )
    with Inputs(tmp_path / "x.h5") as inputs:
        inputs.array("x").read([range(5, 95)], np.empty((1, 2, 90, 4), "f4"), slab_bytes=500)
    inflated = [(head, box) for head, first, last in boxes for box in range(first, last + 1)]
    assert sorted(inflated) == [(head, box) for head in range(2) for box in range(10)]


@pytest.mark.parametrize("bad", [range(0, LENGTH + 1), range(-1, 3), range(5, 2, -1)])
def test_positions_outside_the_dataset_are_refused(stored, bad):
    with Inputs(stored[0]) as inputs, pytest.raises(ShapeError, match="0 to 52"):
        inputs.array("group/plain").read([bad], np.empty((1, 3, len(bad), 4), "f4"))


@pytest.mark.parametrize("out", [np.empty((1, 3, 5, 4), "f4"), np.empty((1, 3, 6, 4), "f8"), np.empty((3, 6, 4), "f4")])
def test_an_array_that_does_not_fit_is_refused(stored, out):
    with Inputs(stored[0]) as inputs, pytest.raises(ShapeError, match=r"expected \(1, 3, 6, 4\) float32"):
        inputs.array("group/plain").read([range(6)], out)


def test_vectors_become_int64_or_float64(stored):
    with Inputs(stored[0]) as inputs:
        lengths, slices, slopes = (inputs.read_vector(name) for name in ("lengths", "/slices", "slopes"))
    assert (lengths.dtype, lengths.tolist()) == (np.int64, [5, 7, 41])
    assert (slices.dtype, slices.shape) == (np.int64, (2, 6))
    assert (slopes.dtype, slopes.tolist()) == (np.float64, [0.5, 0.25])


@pytest.mark.parametrize(
    ("name", "found"), [("huge", "9223372036854775808"), ("scalar", "()"), ("group/plain", "(3, 53, 4)")]
)
def test_what_is_no_vector_is_refused(stored, name, found):
    with Inputs(stored[0]) as inputs, pytest.raises(StorageError) as error:
        inputs.read_vector(name)
    assert name in str(error.value)
    assert found in str(error.value)


@pytest.mark.parametrize("name", ["scalar", "null", "lengths"])
def test_what_is_no_array_is_refused(stored, name):
    with Inputs(stored[0]) as inputs, pytest.raises(StorageError, match=f"{name} of .*expected"):
        inputs.array(name)


def test_a_missing_dataset_names_the_nearest_and_all(stored):
    with Inputs(stored[0]) as inputs, pytest.raises(StorageError) as error:
        inputs.array("group/plian")
    assert "Did you mean group/plain?" in str(error.value)
    assert "lengths" in str(error.value)
    assert "and 3 more" in str(error.value)


@pytest.mark.parametrize("name", ["", "/", "group", "group/plain/deeper", "group/nothing\0", "\udc80", "."])
def test_paths_that_name_no_dataset_are_refused(stored, name):
    with Inputs(stored[0]) as inputs, pytest.raises(StorageError, match=r"in\.h5"):
        inputs.array(name)


def test_a_group_is_called_a_group(stored):
    with Inputs(stored[0]) as inputs, pytest.raises(StorageError, match="a group, not a dataset, 'group'"):
        inputs.array("group")


def test_identity_tells_a_changed_file(stored, tmp_path):
    path = tmp_path / "copy.h5"
    path.write_bytes(stored[0].read_bytes())
    os.utime(path, ns=(1, 2000000001))
    with Inputs(path) as inputs:
        assert inputs.identity() == {"path": str(path), "size_bytes": path.stat().st_size, "mtime_ns": 2000000001}


def _open(path):
    with Inputs(path):
        pytest.fail("opened")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"cannot open .*gone\.h5: No such file.*working directory"):
        _open(tmp_path / "gone.h5")


@pytest.mark.parametrize("content", [b"", b"hello", bytes(5000)], ids=["empty", "text", "zeros"])
def test_a_file_that_is_not_hdf5_is_named(tmp_path, content):
    (tmp_path / "x.h5").write_bytes(content)
    with pytest.raises(StorageError, match=r"x\.h5.*not an HDF5 file"):
        _open(tmp_path / "x.h5")


@pytest.mark.parametrize("kept", [0.9, 0.5, 0.2])
def test_a_truncated_file_is_named(stored, tmp_path, kept):
    content = stored[0].read_bytes()
    (tmp_path / "cut.h5").write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(StorageError, match=r"cut\.h5.*cut off"):
        _open(tmp_path / "cut.h5")


def test_a_directory_is_named(tmp_path):
    with pytest.raises(StorageError, match="path of a file"):
        _open(tmp_path)


def test_damaged_data_is_named_by_file_and_dataset(stored, tmp_path):
    with h5py.File(stored[0]) as file:
        start, size = (getattr(file["group/odd_chunks"].id.get_chunk_info(0), part) for part in ("byte_offset", "size"))
    content = bytearray(stored[0].read_bytes())
    content[start + size // 2] ^= 0xFF
    (tmp_path / "hurt.h5").write_bytes(content)
    with (
        Inputs(tmp_path / "hurt.h5") as inputs,
        pytest.raises(StorageError, match=r"hurt\.h5, dataset /group/odd_chunks"),
    ):
        inputs.array("group/odd_chunks").rows(range(LENGTH))
