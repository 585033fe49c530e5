"""The virtual layout: shard files that stay, and one file that shows them as one array."""

import shutil

import h5py
import numpy as np
import pytest

from ringmpi.core.sharding import Sharding
from ringmpi.errors import StorageError
from ringmpi.storage.digest import dataset_digest
from ringmpi.storage.layout import result_shapes
from ringmpi.storage.results import Results
from ringmpi.storage.virtual import link_shards, remove_parts
from tests.storage.samples import BFLOAT16, DTYPES, bits_of, make_account, make_arrays, write_parts, write_results

LENGTH = 29
SHARDINGS = {
    "contiguous": Sharding.contiguous(LENGTH, 3),
    "zigzag": Sharding.zigzag(LENGTH, 4),
    "striped": Sharding.striped(LENGTH, 5),
    "empty shards": Sharding.from_ranges(LENGTH, [[], [range(LENGTH)], []]),
}


def write_virtual(destination, sharding, output, log_sum_exp, **options):
    parts = write_parts(destination, sharding, output, log_sum_exp)
    link_shards(parts, destination, shapes=result_shapes(output.shape), account=make_account(len(parts)), **options)
    return destination


@pytest.mark.parametrize("lead", [(3,), (2, 3)], ids=["no batch", "batch"])
@pytest.mark.parametrize("name", SHARDINGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_is_seen_in_place(tmp_path, rng, dtype, name, lead):
    output, log_sum_exp = make_arrays(rng, (*lead, LENGTH, 5), dtype)
    path = write_virtual(tmp_path / "out.h5", SHARDINGS[name], output, log_sum_exp, slab_bytes=300)
    with Results(path) as results:
        assert (results.output.shape, results.output.dtype) == (output.shape, output.dtype)
        assert np.array_equal(bits_of(results.output.rows(range(LENGTH))), bits_of(output.reshape(-1, 3, LENGTH, 5)))
        found = results.log_sum_exp.rows(range(LENGTH))
        assert np.array_equal(bits_of(found), bits_of(log_sum_exp.reshape(-1, 3, LENGTH)))
        for array in (results.output, results.log_sum_exp):
            assert dataset_digest(array) == array.recorded_digest


def test_digests_are_those_of_the_merged_file(tmp_path, rng):
    arrays = make_arrays(rng, (3, LENGTH, 5), "float16")
    write_virtual(tmp_path / "virtual.h5", SHARDINGS["zigzag"], *arrays)
    write_results(tmp_path / "merged.h5", SHARDINGS["zigzag"], *arrays)
    with Results(tmp_path / "virtual.h5") as one, Results(tmp_path / "merged.h5") as other:
        assert one.output.recorded_digest == other.output.recorded_digest
        assert one.log_sum_exp.recorded_digest == other.log_sum_exp.recorded_digest


def test_the_whole_folder_may_move(tmp_path, rng):
    (tmp_path / "a").mkdir()
    output, log_sum_exp = make_arrays(rng, (3, LENGTH, 5), "float32")
    write_virtual(tmp_path / "a" / "out.h5", SHARDINGS["striped"], output, log_sum_exp)
    (tmp_path / "a").rename(tmp_path / "b")
    with Results(tmp_path / "b" / "out.h5") as results:
        assert np.array_equal(bits_of(results.output.rows(range(LENGTH))[0]), bits_of(output))


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=str)
def test_a_missing_part_is_refused_and_reads_as_nan_elsewhere(tmp_path, dtype):
    output = np.ones((3, LENGTH, 5), dtype)
    path = write_virtual(tmp_path / "out.h5", SHARDINGS["contiguous"], output, np.ones((3, LENGTH), "f4"))
    (lost,) = tmp_path.glob("out.h5.part-*-00001")
    lost.unlink()
    with pytest.raises(StorageError, match=rf"1 of its 3 sources are missing: {lost.name}"), Results(path):
        pass
    with h5py.File(path) as file:
        held = np.isnan(np.asarray(file["output"][...], np.float32)).all(axis=(0, 2))
    assert held.tolist() == [LENGTH // 3 <= p < 2 * LENGTH // 3 for p in range(LENGTH)]


def test_a_changed_part_shows_in_the_digest(tmp_path, rng):
    path = write_virtual(tmp_path / "out.h5", SHARDINGS["contiguous"], *make_arrays(rng, (3, LENGTH, 5), "float32"))
    (part,) = tmp_path.glob("out.h5.part-*-00001")
    with h5py.File(part, "r+") as file:
        file["output"][0, 0, 3, 1] = 7
    with Results(path) as results:
        assert dataset_digest(results.output) != results.output.recorded_digest
        assert dataset_digest(results.log_sum_exp) == results.log_sum_exp.recorded_digest


def test_another_result_takes_the_place_of_the_whole_older_one(tmp_path, rng):
    sharding = SHARDINGS["contiguous"]
    path = write_virtual(tmp_path / "out.h5", sharding, *make_arrays(rng, (3, LENGTH, 5), "float32"))
    (tmp_path / "out.h5.part-note").touch()
    output, log_sum_exp = make_arrays(rng, (3, LENGTH, 5), "float32")
    with pytest.raises(StorageError, match="--force"):
        write_virtual(path, sharding, output, log_sum_exp)
    write_virtual(path, sharding, output, log_sum_exp, force=True)
    with Results(path) as results:
        assert np.array_equal(bits_of(results.output.rows(range(LENGTH))[0]), bits_of(output))
    names = sorted(p.name.split("-")[-1] for p in tmp_path.iterdir())
    assert names == ["00000", "00001", "00002", "note", "out.h5"]


def test_a_failed_run_leaves_the_older_result_whole(tmp_path, rng, monkeypatch):
    sharding = SHARDINGS["contiguous"]
    output, log_sum_exp = make_arrays(rng, (3, LENGTH, 5), "float32")
    path = write_virtual(tmp_path / "out.h5", sharding, output, log_sum_exp)

    def fail(*_):
        raise OSError(28, "full")

    monkeypatch.setattr("ringmpi.storage.merge.write_account", fail)
    with pytest.raises(StorageError, match="No space left"):
        write_virtual(path, sharding, *make_arrays(rng, (3, LENGTH, 5), "float32"), force=True)
    with Results(path) as results:
        assert np.array_equal(bits_of(results.output.rows(range(LENGTH))[0]), bits_of(output))


def test_the_same_result_again_is_whole_too(tmp_path, rng):
    arrays = make_arrays(rng, (3, LENGTH, 5), "float32")
    for _ in range(2):
        path = write_virtual(tmp_path / "out.h5", SHARDINGS["zigzag"], *arrays, force=True)
        with Results(path) as results:
            assert np.array_equal(bits_of(results.output.rows(range(LENGTH))[0]), bits_of(arrays[0]))


def test_parts_are_removed_of_one_output_only(tmp_path, rng):
    arrays = make_arrays(rng, (3, LENGTH, 5), "float32")
    for name in ("out.h5", "other.h5"):
        write_virtual(tmp_path / name, SHARDINGS["contiguous"], *arrays)
    shutil.copy(tmp_path / "out.h5", tmp_path / "kept.h5")
    remove_parts(tmp_path / "out.h5")
    assert sorted(p.name.split(".part")[0] for p in tmp_path.iterdir()) == ["kept.h5", *["other.h5"] * 4, "out.h5"]


def test_no_query_at_all_is_a_result_too(tmp_path, rng):
    path = write_virtual(tmp_path / "out.h5", Sharding.contiguous(0, 2), *make_arrays(rng, (2, 0, 4), "float32"))
    with Results(path) as results:
        assert results.output.rows([]).shape == (1, 2, 0, 4)
