"""Inputs in every form and outputs in both layouts, through a whole run and its verification."""

import importlib
import json

import h5py
import numpy as np
import pytest

from ringmpi.analysis.verify import verify_file
from tests.launched.test_run import passed


def toml(folder, file, names="{}", options=""):
    query, key, value = (names.format(name) for name in "qkv")
    (folder / "run.toml").write_bytes(
        b"\xef\xbb\xbf"
        + f'[input]\nfile = "{file}"\nquery = "{query}"\nkey = "{key}"\nvalue = "{value}"\n'
        f'[output]\nfile = "out.h5"\nverify_rows = 100000\n{options}'.replace("\n", "\r\n").encode()
    )


def npy(folder, arrays):
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    toml(folder, ".", "{}.npy")


def npz(folder, arrays):
    np.savez(folder / "in.npz", **arrays)
    toml(folder, "in.npz")


def zarr(folder, arrays):
    store = importlib.import_module("zarr").open_group(folder / "in.zarr", mode="w")
    for name, array in arrays.items():
        store.create_array(f"layer/{name}", data=array, chunks=(1, 16, 8))
    toml(folder, "in.zarr", "layer/{}")


def big_endian_gzip(folder, arrays):
    with h5py.File(folder / "in.h5", "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array.astype(">f4"), chunks=(2, 16, 8), compression="gzip", shuffle=True)
    toml(folder, "in.h5")


def virtual(folder, arrays):
    with h5py.File(folder / "in.h5", "w") as file:
        for name, array in arrays.items():
            layout = h5py.VirtualLayout(array.shape, array.dtype)
            for half in range(2):
                with h5py.File(folder / f"{name}{half}.h5", "w") as part:
                    part["x"] = array[:, half::2]
                layout[:, half::2] = h5py.VirtualSource(f"{name}{half}.h5", "x", array[:, half::2].shape)
            file.create_virtual_dataset(name, layout)
    toml(folder, "in.h5")


def external(folder, arrays):
    with h5py.File(folder / "in.h5", "w") as file:
        for name, array in arrays.items():
            array.tofile(folder / f"{name}.raw")
            file.create_dataset(name, array.shape, array.dtype, external=[(f"{name}.raw", 0, array.nbytes)])
    toml(folder, "in.h5")


@pytest.fixture
def arrays(rng):
    return {
        name: rng.standard_normal((heads, 75, 16), dtype=np.float32)
        for name, heads in zip("qkv", (4, 2, 2), strict=True)
    }


@pytest.mark.parametrize("form", [npy, npz, zarr, big_endian_gzip, virtual, external])
@pytest.mark.parametrize("sharding", ["zigzag", "striped"])
def test_every_form_gives_the_same_result(mpirun, tmp_path, arrays, form, sharding):
    form(tmp_path, arrays)
    passed(mpirun(3, "run", "run.toml", "--json", "--set", f"ring.sharding={sharding}", cwd=tmp_path))
    scores = np.einsum("hqd,hkd->hqk", arrays["q"], np.repeat(arrays["k"], 2, 0)) / 4
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights @ np.repeat(arrays["v"], 2, 0) / weights.sum(-1, keepdims=True)
    with h5py.File(tmp_path / "out.h5") as file:
        assert np.abs(file["output"][...] - expected).max() < 1e-5


def test_a_changed_npy_file_is_named_by_verify(mpirun, tmp_path, arrays, monkeypatch):
    npy(tmp_path, arrays)
    passed(mpirun(2, "run", "run.toml", "--json", cwd=tmp_path))
    monkeypatch.chdir(tmp_path)
    np.save("v.npy", arrays["v"])
    assert verify_file("out.h5").passed
    np.save("v.npy", -arrays["v"])
    assert any("different numbers in value" in line for line in verify_file("out.h5").lines())


def test_the_virtual_layout_is_verified_moved_and_replaced(mpirun, job, tmp_path):
    path = job(75)
    report = passed(mpirun(3, "run", path, "--json", "--set", "output.layout=virtual"))
    assert report["pairs_attended"] == 75 * 75 * 4
    parts = sorted(path.name for path in tmp_path.glob("out.h5.*"))
    assert [name[-6:] for name in parts] == ["-00000", "-00001", "-00002"]
    passed(mpirun(2, "run", path, "--json", "--force"))
    assert not list(tmp_path.glob("out.h5.*"))
    passed(mpirun(2, "run", path, "--json", "--force", "--set", "output.layout=virtual"))
    (tmp_path / "elsewhere").mkdir()
    for file in tmp_path.glob("out.h5*"):
        file.rename(tmp_path / "elsewhere" / file.name)
    assert verify_file(tmp_path / "elsewhere" / "out.h5").passed
    next((tmp_path / "elsewhere").glob("*-00001")).unlink()
    done = mpirun(1, "verify", tmp_path / "elsewhere" / "out.h5")
    assert done.code == 3
    assert "1 of its 2 sources are missing" in done.err


def test_slices_may_overlap_and_reach_beyond_the_arrays(mpirun, job):
    slices = np.array([[0, 75, 0, 75, -5, 0], [10, 900, 0, 40, -9, 2], [-50, 20, -3, 7, -(1 << 60), 1 << 60]])
    done = mpirun(
        2, "run", job(75, options='[attention]\nmask = {slices = "slices"}', extra={"slices": slices}), "--json"
    )
    allowed = np.zeros((75, 75), bool)
    i, j = np.indices((75, 75))
    for q0, q1, k0, k1, low, high in slices:
        allowed |= (q0 <= i) & (i < q1) & (k0 <= j) & (j < k1) & (low <= j - i) & (j - i <= high)
    assert passed(done)["pairs_asked"] == allowed.sum() * 4


def test_keys_that_no_query_sees_are_not_part_of_what_was_read(mpirun, job, tmp_path):
    """Of those arrays no checksum is recorded: it would be one of something else."""
    passed(
        mpirun(
            3,
            "run",
            job(75, options="[attention]\nmask = {keys = [0, 20]}"),
            "--json",
            "--set",
            "ring.sharding=contiguous",
        )
    )
    with h5py.File(tmp_path / "out.h5") as file:
        recorded = json.loads(file["provenance"].attrs["input_identity"])
    assert set(recorded) == {"path", "size_bytes", "mtime_ns", "query"}
