import shutil
import subprocess

import h5py
import numpy as np
import pytest

from ringmpi.errors import StorageError
from ringmpi.storage.bits import create_floats, read_bits, stored_float, write_bits
from tests.storage.samples import BFLOAT16, DTYPES, any_bits, bits_of

NUMBERS = np.array([1.5, -2.25, 3e38, np.inf, 2**-126, 0.0], BFLOAT16)


@pytest.fixture
def bfloat16_file(tmp_path):
    path = tmp_path / "b.h5"
    with h5py.File(path, "w") as file:
        write_bits(create_floats(file, "/x", NUMBERS.shape, BFLOAT16), (0,), bits_of(NUMBERS))
    return path


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_pattern_survives(tmp_path, rng, dtype):
    array = any_bits(rng, (500, 4), dtype)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = create_floats(file, "/x", array.shape, dtype)
        write_bits(dataset, (0, 0), bits_of(array))
        bits, value = stored_float(dataset)
        assert value == dtype
        assert np.array_equal(read_bits(dataset, (7, 1), (90, 2), bits), bits_of(array)[7:97, 1:3])


def test_bfloat16_is_a_float_of_16_bits_to_any_tool(bfloat16_file):
    with h5py.File(bfloat16_file) as file:
        kind = file["x"].id.get_type()
        assert kind.get_class() == h5py.h5t.FLOAT
        assert (kind.get_size(), kind.get_fields(), kind.get_ebias()) == (2, (15, 7, 8, 0, 7), 127)
        assert np.array_equal(file["x"][...], NUMBERS.astype(np.float32))


@pytest.mark.skipif(shutil.which("h5dump") is None, reason="h5dump (hdf5-tools) is not installed")
def test_h5dump_prints_bfloat16_as_numbers(bfloat16_file):
    shown = subprocess.run(["h5dump", "-d", "/x", bfloat16_file], capture_output=True, text=True, check=True).stdout
    assert "1.5, -2.25, 3.00406e+38, inf" in shown


def test_big_endian_bfloat16_is_understood(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        kind = h5py.h5t.IEEE_F16BE.copy()
        kind.set_fields(15, 7, 8, 0, 7)
        kind.set_ebias(127)
        h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple(NUMBERS.shape))
        write_bits(file["x"], (0,), bits_of(NUMBERS).byteswap())
        assert np.array_equal(file["x"][...], NUMBERS.astype(np.float32))
        assert stored_float(file["x"]) == (np.dtype(">u2"), BFLOAT16)


def test_half_precision_is_not_taken_for_bfloat16(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = np.ones(3, ">f2")
        assert stored_float(file["x"]) == (np.dtype(">u2"), np.dtype("float16"))


@pytest.mark.parametrize("mark", ["bfloat16", b"bfloat16"])
def test_marked_uint16_is_bfloat16(tmp_path, mark):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = NUMBERS.view(np.uint16)
        file["x"].attrs["ringmpi_dtype"] = mark
        assert stored_float(file["x"]) == (np.dtype("<u2"), BFLOAT16)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (np.zeros(2, np.int32), "int32"),
        (np.zeros(2, np.uint16), "uint16"),
        (np.zeros(2, np.complex64), "complex64"),
        (np.array(["a", "b"], object), "strings"),
        (np.zeros(2, [("a", "f4")]), "[('a', '<f4')]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_float_is_refused_by_name(tmp_path, data, found):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["things"] = data
        with pytest.raises(StorageError) as error:
            stored_float(file["things"])
    assert "/things" in str(error.value)
    assert found in str(error.value)
    assert "float32" in str(error.value)


def test_floats_of_an_uncommon_form_are_refused(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        kind = h5py.h5t.IEEE_F32LE.copy()
        kind.set_ebias(120)
        h5py.h5d.create(file.id, b"odd", kind, h5py.h5s.create_simple((2,)))
        with pytest.raises(StorageError, match="uncommon form"):
            stored_float(file["odd"])
