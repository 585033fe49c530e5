"""What an HDF5 file takes from other files is there, or is missed: HDF5 itself reads zeros."""

import os

import h5py
import numpy as np
import pytest

from ringmpi.errors import StorageError
from ringmpi.storage.inputs import Inputs
from tests.storage.samples import any_bits, bits_of

SHAPE = (2, 10, 4)


@pytest.fixture
def array(rng):
    return any_bits(rng, SHAPE, "f4")


def read(path, name="x"):
    with Inputs(path) as inputs:
        return inputs.array(name).rows(range(SHAPE[1]))[0]


@pytest.fixture
def virtual(tmp_path, array):
    """Two files of half the positions each, interleaved by a third."""
    layout = h5py.VirtualLayout(SHAPE, "f4")
    for n in range(2):
        with h5py.File(tmp_path / f"part{n}.h5", "w") as file:
            file["x"] = array[:, n::2]
        layout[:, n::2] = h5py.VirtualSource(f"part{n}.h5", "x", (2, 5, 4))
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    return tmp_path / "in.h5"


def test_a_virtual_dataset_is_read_wherever_the_process_runs(virtual, array, monkeypatch, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert np.array_equal(bits_of(read(virtual)), bits_of(array))


def test_a_virtual_dataset_moved_with_its_sources_is_read(virtual, array, tmp_path):
    (tmp_path / "moved").mkdir()
    for file in list(tmp_path.glob("*.h5")):
        file.rename(tmp_path / "moved" / file.name)
    assert np.array_equal(bits_of(read(tmp_path / "moved" / "in.h5")), bits_of(array))


@pytest.mark.parametrize("loss", ["gone", "other dataset", "no HDF5"])
def test_a_virtual_dataset_without_one_source_is_refused(virtual, tmp_path, loss):
    source = tmp_path / "part1.h5"
    source.unlink()
    if loss == "other dataset":
        with h5py.File(source, "w") as file:
            file["y"] = 1
    elif loss == "no HDF5":
        source.write_text("hello")
    with pytest.raises(StorageError, match=r"1 of its 2 sources are missing: part1\.h5:x"):
        read(virtual)


def test_a_source_in_the_same_file_is_found(tmp_path, array):
    layout = h5py.VirtualLayout(SHAPE, "f4")
    layout[...] = h5py.VirtualSource(".", "real", SHAPE)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["real"] = array
        file.create_virtual_dataset("x", layout)
    assert np.array_equal(bits_of(read(tmp_path / "in.h5")), bits_of(array))


@pytest.fixture(params=[h5py.h5f.UNLIMITED, 2 * 10 * 4 * 4], ids=["unlimited", "sized"])
def external(tmp_path, array, request):
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", SHAPE, "f4", external=[(str(tmp_path / "in.raw"), 0, request.param)])
        file["x"][...] = array
    return tmp_path / "in.h5"


def test_external_numbers_are_read(external, array):
    assert np.array_equal(bits_of(read(external)), bits_of(array))


def test_missing_or_cut_external_numbers_are_refused(external, tmp_path):
    os.truncate(tmp_path / "in.raw", 319)
    with pytest.raises(StorageError, match=r"in\.raw, which holds 319 bytes for it, expected 320"):
        read(external)
    (tmp_path / "in.raw").unlink()
    with pytest.raises(StorageError, match=r"in\.raw, which is missing"):
        read(external)


def test_links_are_followed_and_missed(tmp_path, array):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["deep/x"] = array
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["x"] = h5py.ExternalLink("other.h5", "/deep/x")
        file["gone"] = h5py.ExternalLink("nowhere.h5", "/x")
        file["soft"] = h5py.SoftLink("/nothing")
    assert np.array_equal(bits_of(read(tmp_path / "in.h5")), bits_of(array))
    with pytest.raises(StorageError, match=r"'gone' as a link to /x in nowhere\.h5, which does not exist"):
        read(tmp_path / "in.h5", "gone")
    with pytest.raises(StorageError, match=r"'soft' as a link to /nothing, which does not exist"):
        read(tmp_path / "in.h5", "soft")


def test_a_filter_that_is_not_installed_is_said(tmp_path, array):
    with h5py.File(tmp_path / "in.h5", "w") as file:
        creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        creation.set_chunk(SHAPE)
        creation.set_filter(32001, h5py.h5z.FLAG_OPTIONAL, (1,))
        space = h5py.h5s.create_simple(SHAPE)
        dataset = h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, space, creation)
        dataset.write_direct_chunk((0, 0, 0), array.tobytes(), 0)
    with pytest.raises(StorageError, match=r"in\.h5, dataset /x: .*compression needs a plugin"):
        read(tmp_path / "in.h5")
