import hashlib
import tracemalloc

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi.core.sharding import Sharding
from ringmpi.errors import ShapeError, StorageError
from ringmpi.storage import merge as merge_module
from ringmpi.storage.layout import result_shapes
from ringmpi.storage.merge import check_cover, merge_bytes, merge_shards
from ringmpi.storage.results import Results
from ringmpi.storage.shards import open_shard, remove_shards, shard_path, write_shard
from tests.storage.samples import (
    BFLOAT16,
    DTYPES,
    bits_of,
    make_account,
    make_arrays,
    write_parts,
    write_results,
)

LENGTH = 29
SHARDINGS = {
    "contiguous": Sharding.contiguous(LENGTH, 3),
    "zigzag": Sharding.zigzag(LENGTH, 4),
    "striped": Sharding.striped(LENGTH, 5),
    "one": Sharding.contiguous(LENGTH, 1),
    "empty shards": Sharding.from_ranges(LENGTH, [[], [range(LENGTH)], []]),
    "unequal": Sharding.from_ranges(LENGTH, [[range(3, 20)], [], [range(0, 3), range(20, 29, 2)], [range(21, 29, 2)]]),
}


@pytest.mark.parametrize(("lead", "slab_bytes"), [((3,), 64), ((2, 3), 700)], ids=["no batch", "batch"])
@pytest.mark.parametrize("name", SHARDINGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_bit_comes_back_in_place(tmp_path, rng, dtype, name, lead, slab_bytes):
    output, log_sum_exp = make_arrays(rng, (*lead, LENGTH, 5), dtype)
    path = write_results(tmp_path / "out.h5", SHARDINGS[name], output, log_sum_exp, slab_bytes=slab_bytes)
    with Results(path) as results:
        assert (results.output.shape, results.output.dtype) == (output.shape, output.dtype)
        assert (results.log_sum_exp.shape, results.log_sum_exp.dtype) == (log_sum_exp.shape, log_sum_exp.dtype)
        assert np.array_equal(bits_of(results.output.rows(range(LENGTH))), bits_of(output.reshape(-1, 3, LENGTH, 5)))
        found = results.log_sum_exp.rows(range(LENGTH))
        assert np.array_equal(bits_of(found), bits_of(log_sum_exp.reshape(-1, 3, LENGTH)))
        assert results.shards == SHARDINGS[name].shards
    assert [p.name for p in tmp_path.iterdir()] == ["out.h5"]


@pytest.mark.parametrize("slab_bytes", [1, 40, 600, 700, 1 << 20])
def test_slabs_of_any_size_give_the_same_file(tmp_path, rng, slab_bytes):
    output, log_sum_exp = make_arrays(rng, (3, LENGTH, 5), "float32")
    path = write_results(tmp_path / "out.h5", SHARDINGS["unequal"], output, log_sum_exp, slab_bytes=slab_bytes)
    with h5py.File(path) as file:
        assert np.array_equal(bits_of(file["output"][...]), bits_of(output))
        assert np.array_equal(bits_of(file["log_sum_exp"][...]), bits_of(log_sum_exp))


def test_plain_h5py_reads_everything(tmp_path):
    output = np.linspace(-3, 3, 2 * LENGTH * 4, dtype="f4").reshape(2, LENGTH, 4).astype(BFLOAT16)
    log_sum_exp = np.full((2, LENGTH), -np.inf, "f4")
    write_results(tmp_path / "out.h5", SHARDINGS["striped"], output, log_sum_exp)
    with h5py.File(tmp_path / "out.h5") as file:
        assert np.array_equal(file["output"][...], output.astype("f4"))
        assert np.array_equal(file["log_sum_exp"][...], log_sum_exp)
        assert file["output"].attrs["axes"] == "(batch), query_heads, query_length, value_dim"
        assert file["log_sum_exp"].attrs["unit"] == "score units, natural logarithm"
        assert file["shards"][1].tolist() == [1, 1, LENGTH, 5]
        assert file["provenance/hosts"].asstr()[0] == "n000"
        assert file["timeline"].attrs["pairs_asked"] == 1 << 50


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_digest_is_the_documented_one(tmp_path, rng, dtype):
    arrays = make_arrays(rng, (2, 3, LENGTH, 5), dtype)
    write_results(tmp_path / "out.h5", SHARDINGS["zigzag"], *arrays, slab_bytes=100)
    with h5py.File(tmp_path / "out.h5") as file:
        for name, array in zip(("output", "log_sum_exp"), arrays, strict=True):
            documented = hashlib.blake2b(file[name][...].tobytes(), digest_size=32).hexdigest()
            assert file[name].attrs["blake2b"] == documented
            assert hashlib.blake2b(array.tobytes(), digest_size=32).hexdigest() == documented


def test_no_query_at_all_is_a_result_too(tmp_path, rng):
    arrays = make_arrays(rng, (2, 0, 4), "float32")
    with Results(write_results(tmp_path / "out.h5", Sharding.contiguous(0, 3), *arrays)) as results:
        assert results.output.shape == (2, 0, 4)
        assert results.output.rows([]).shape == (1, 2, 0, 4)


def test_a_shard_takes_arrays_of_any_strides_and_byte_order(tmp_path):
    output = np.arange(24.0).reshape(1, 3, 2, 4)
    path = shard_path(tmp_path / "out.h5", 7)
    write_shard(
        path, ranges=[range(3)], output=output.transpose(0, 2, 1, 3).astype(">f4"), log_sum_exp=np.zeros((1, 2, 3))
    )
    with h5py.File(path) as file:
        assert np.array_equal(file["output"][...], output.transpose(0, 2, 1, 3))
        assert file["output"].dtype == "<f4"
    assert open_shard(path).arrays["/output"].ranges == (range(3),)


@pytest.mark.parametrize(
    ("ranges", "output", "log_sum_exp"),
    [
        ([range(4)], (1, 2, 3, 4), (1, 2, 3)),
        ([range(3)], (2, 3, 4), (2, 3)),
        ([range(3)], (1, 2, 3, 4), (1, 2, 4)),
    ],
)
def test_a_shard_that_does_not_fit_its_positions_is_refused(tmp_path, ranges, output, log_sum_exp):
    with pytest.raises(ShapeError, match="do not fit"):
        write_shard(tmp_path / "s", ranges=ranges, output=np.zeros(output), log_sum_exp=np.zeros(log_sum_exp))
    assert not list(tmp_path.iterdir())


def _merge_custom(tmp_path, shards, length, account_ranks=None):
    parts = []
    for rank, ranges in enumerate(shards):
        n = sum(map(len, ranges))
        parts.append(shard_path(tmp_path / "out.h5", rank))
        write_shard(parts[-1], ranges=ranges, output=np.zeros((1, 2, n, 4)), log_sum_exp=np.zeros((1, 2, n)))
    account = make_account(account_ranks or len(shards))
    merge_shards(parts, tmp_path / "out.h5", shapes=result_shapes((2, length, 4)), account=account)


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ([[range(5)], [range(6, 10)]], "position 5 is in 0 of the 2 shards"),
        ([[range(5)], [range(4, 10)]], "position 4 is in 2 of the 2 shards"),
        ([[range(0, 10, 2)], [range(1, 8, 2)]], "position 9 is in 0"),
        ([[range(5)], [range(5, 9)]], "position 9 is in 0"),
        ([[range(5)], [range(5, 11)]], "the shard of rank 1 has range(5, 11)"),
        ([[range(6)], [range(0)]], "position 6 is in 0"),
    ],
)
def test_positions_missing_or_held_twice_are_refused(tmp_path, shards, message):
    with pytest.raises(StorageError) as error:
        _merge_custom(tmp_path, shards, 10)
    assert message in str(error.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.h5.shard-00000", "out.h5.shard-00001"]


@given(st.integers(1, 200), st.integers(1, 6), st.integers(1, 50), st.data())
def test_one_changed_position_is_always_seen(length, ranks, window, data):
    owners = data.draw(st.lists(st.integers(0, ranks - 1), min_size=length, max_size=length))
    shards = [[range(p, p + 1) for p in range(length) if owners[p] == rank] for rank in range(ranks)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_module, "COVER_WINDOW", window)
        check_cover(shards, length)
        position = data.draw(st.integers(0, length - 1))
        with pytest.raises(StorageError, match=f"position {position} is in 2 of"):
            check_cover([*shards, [range(position, position + 1)]], length)
        shards[owners[position]].remove(range(position, position + 1))
        with pytest.raises(StorageError, match=f"position {position} is in 0 of"):
            check_cover(shards, length)


def test_shard_files_of_other_ranks_dtypes_or_heads_are_refused(tmp_path, rng):
    with pytest.raises(StorageError, match="2 shard files for 3 ranks"):
        _merge_custom(tmp_path, [[range(5)], [range(5, 10)]], 10, account_ranks=3)
    parts = write_parts(tmp_path / "out.h5", Sharding.contiguous(10, 2), *make_arrays(rng, (2, 10, 4), "float32"))
    with pytest.raises(
        StorageError, match=r"shard-00000 holds .* of /output \(1, 2, 4, float32\), .*; expected /output \(1, 3, 4"
    ):
        merge_shards(parts, tmp_path / "out.h5", shapes=result_shapes((3, 10, 4)), account=make_account(2))
    write_shard(parts[1], ranges=[range(5, 10)], output=np.zeros((1, 2, 5, 4)), log_sum_exp=np.zeros((1, 2, 5)))
    with pytest.raises(StorageError, match=r"shard-00001 holds .*4, float64\), .*; expected .*4, float32\)"):
        merge_shards(parts, tmp_path / "out.h5", shapes=result_shapes((2, 10, 4)), account=make_account(2))
    assert not (tmp_path / "out.h5").exists()


@pytest.mark.parametrize("damage", ["missing", "foreign", "truncated", "emptied"])
def test_a_damaged_shard_file_is_named_and_nothing_written(tmp_path, rng, damage):
    parts = write_parts(tmp_path / "out.h5", Sharding.contiguous(10, 2), *make_arrays(rng, (2, 10, 4), "float32"))
    if damage == "missing":
        parts[1].unlink()
    elif damage == "truncated":
        parts[1].write_bytes(parts[1].read_bytes()[:-50])
    else:
        parts[1].unlink()
        with h5py.File(parts[1], "w") as file:
            file.attrs.update({"schema": "ringmpi-shard" if damage == "emptied" else "other", "schema_version": 2})
    with pytest.raises(StorageError, match="shard-00001"):
        merge_shards(parts, tmp_path / "out.h5", shapes=result_shapes((2, 10, 4)), account=make_account(2))
    assert not (tmp_path / "out.h5").exists()
    assert parts[0].exists()


@pytest.mark.parametrize(
    ("name", "data"), [("log_sum_exp", np.zeros((1, 2, 4), "f4")), ("shards", np.array([[0, 4, 1]]))]
)
def test_a_shard_file_whose_arrays_differ_in_length_is_refused(tmp_path, rng, name, data):
    (part,) = write_parts(tmp_path / "out.h5", Sharding.contiguous(5, 1), *make_arrays(rng, (2, 5, 4), "float32"))
    with h5py.File(part, "r+") as file:
        del file[name]
        file[name] = data
    with pytest.raises(StorageError, match=r"shard-00000 is damaged.*differ in length"):
        open_shard(part)


def test_a_shard_file_of_an_earlier_run_does_not_outlive_a_failed_write(tmp_path, rng, monkeypatch):
    sharding, arrays = Sharding.contiguous(10, 1), make_arrays(rng, (2, 10, 4), "float32")
    (part,) = write_parts(tmp_path / "out.h5", sharding, *arrays)

    def fail(*_):
        raise OSError(28, "full")

    monkeypatch.setattr("ringmpi.storage.bits.write_bits", fail)
    with pytest.raises(StorageError, match="No space left"):
        write_parts(tmp_path / "out.h5", sharding, *arrays)
    assert not part.exists()


def test_remove_shards_takes_what_a_killed_run_left_and_nothing_else(tmp_path):
    left = ["out.h5.shard-00000", "out.h5.shard-00012.tmp", "out.h5.tmp"]
    kept = ["out.h5", "out.h5.shard-x", "other.h5.shard-00000", "out.h5.shard-00000.copy", "out_h5.tmp", "notes.txt"]
    for name in left + kept:
        (tmp_path / name).touch()
    remove_shards(tmp_path / "out.h5")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(kept)


def test_merging_holds_a_few_slabs_in_memory_not_the_dataset(tmp_path):
    sharding, slab = Sharding.striped(4096, 4), 1 << 16
    output = np.ones((1, 8, 4096, 64), "f4")
    parts = write_parts(tmp_path / "out.h5", sharding, output, output[..., 0])
    tracemalloc.start()
    try:
        merge_shards(
            parts, tmp_path / "out.h5", shapes=result_shapes(output.shape), account=make_account(4), slab_bytes=slab
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert output.nbytes == 8 << 20
    assert peak < 4 * slab + (1 << 18)


def test_merge_bytes_is_enough_for_parts_and_output(tmp_path, rng):
    arrays = make_arrays(rng, (2, 3, 500, 16), BFLOAT16)
    parts = write_parts(tmp_path / "out.h5", Sharding.zigzag(500, 4), *arrays)
    used = sum(part.stat().st_size for part in parts)
    merge_shards(parts, tmp_path / "out.h5", shapes=result_shapes(arrays[0].shape), account=make_account(4))
    used += (tmp_path / "out.h5").stat().st_size
    payload = 2 * sum(array.nbytes for array in arrays)
    assert payload <= used <= merge_bytes(result_shapes(arrays[0].shape), BFLOAT16) <= payload + (1 << 20)
