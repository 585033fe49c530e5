"""What is recorded of rows: written by ranks, merged or shown in place, read back bit by bit, missed where it lacks."""

from dataclasses import replace

import h5py
import numpy as np
import pytest

from ringmpi.analysis.contents import examine
from ringmpi.core.sharding import Sharding
from ringmpi.errors import ShapeError, StorageError
from ringmpi.storage.digest import dataset_digest
from ringmpi.storage.layout import dataset_layout, result_shapes
from ringmpi.storage.merge import merge_bytes, merge_shards
from ringmpi.storage.rank_state import RankState, StateArray, write_rank_state
from ringmpi.storage.record_layout import ENTROPY, RECORDED_ROWS, SINKS, TOP_KEY
from ringmpi.storage.results import Results
from ringmpi.storage.shards import open_shard, shard_path, write_shard
from ringmpi.storage.virtual import link_shards
from tests.storage.samples import any_bits, bits_of, make_account, make_arrays

LENGTH = 29
SHARDINGS = {
    "contiguous": Sharding.contiguous(LENGTH, 3),
    "zigzag": Sharding.zigzag(LENGTH, 4),
    "striped": Sharding.striped(LENGTH, 5),
    "empty shards": Sharding.from_ranges(LENGTH, [[], [range(LENGTH)], []]),
}


def problems(path, **options):
    """All but what the samples are: runs that lost a pair."""
    return [problem for problem in examine(path, **options).problems if "NOT EXACT" not in problem]


def make_rows(rng, shape, dtype):
    """Output, log_sum_exp and recorded rows, of any bits."""
    output, log_sum_exp = make_arrays(rng, shape, dtype)
    wide = log_sum_exp.dtype
    return (
        output,
        log_sum_exp,
        {
            name: rng.integers(-1, 1 << 40, shape[:-1]) if name == TOP_KEY else any_bits(rng, shape[:-1], wide)
            for name in RECORDED_ROWS
        },
    )


def write(destination, sharding, output, log_sum_exp, record, finish=merge_shards):
    lead = (lambda array: array[None]) if output.ndim == 3 else (lambda array: array)
    parts = []
    for rank, ranges in enumerate(sharding.shards):
        at = sharding.positions(rank)
        parts.append(shard_path(destination, rank))
        held = {name: lead(array)[:, :, at] for name, array in record.items()}
        write_shard(
            parts[-1],
            ranges=ranges,
            output=lead(output)[:, :, at],
            log_sum_exp=lead(log_sum_exp)[:, :, at],
            record=held,
        )
    run = replace(make_account(len(parts)), first_keys=7)
    finish(parts, destination, shapes=result_shapes(output.shape, rows=True), account=run)
    return destination


@pytest.fixture
def written(tmp_path, rng):
    arrays = make_rows(rng, (3, LENGTH, 5), "float32")
    return write(tmp_path / "out.h5", SHARDINGS["zigzag"], *arrays), arrays[2]


@pytest.mark.parametrize("finish", [merge_shards, link_shards])
@pytest.mark.parametrize("lead", [(3,), (2, 3)], ids=["no batch", "batch"])
@pytest.mark.parametrize("name", SHARDINGS)
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_every_bit_is_where_it_belongs(tmp_path, rng, dtype, name, lead, finish):
    output, log_sum_exp, record = make_rows(rng, (*lead, LENGTH, 5), dtype)
    path = write(tmp_path / "out.h5", SHARDINGS[name], output, log_sum_exp, record, finish)
    with Results(path) as results:
        assert tuple(results.recorded_rows) == RECORDED_ROWS
        assert results.account.first_keys == 7
        for name, source in results.recorded_rows.items():
            assert (source.shape, source.dtype) == (record[name].shape, record[name].dtype)
            found = source.rows(range(LENGTH)).reshape(record[name].shape)
            assert np.array_equal(bits_of(found), bits_of(record[name]))
            assert dataset_digest(source) == source.recorded_digest
            assert source in results.arrays
    assert problems(path, check=True) == []


def test_h5py_alone_reads_names_units_and_keys(written):
    path, record = written
    with h5py.File(path) as file:
        for name in RECORDED_ROWS:
            layout = dataset_layout(name)
            assert file[name].attrs["unit"] == layout.unit
            assert file[name].attrs["meaning"] == layout.meaning
        np.testing.assert_array_equal(file[TOP_KEY][...], record[TOP_KEY])
        assert file[TOP_KEY].dtype == np.int64
        assert file[SINKS].attrs["keys"] == 7


@pytest.mark.parametrize("name", RECORDED_ROWS)
def test_a_file_that_lacks_one_of_them_is_refused(written, name):
    path, _ = written
    with h5py.File(path, "r+") as file:
        del file[name]
    with pytest.raises(StorageError, match=f"lacks {name}"), Results(path):
        pass
    assert any(name in problem for problem in problems(path))


@pytest.mark.parametrize(
    ("dtype", "told"), [("float64", "expected float32 for an output of float32"), ("int64", "holds int64")]
)
def test_a_changed_dtype_is_named(written, dtype, told):
    path, _ = written
    with h5py.File(path, "r+") as file:
        attributes, shape = dict(file[ENTROPY].attrs), file[ENTROPY].shape
        del file[ENTROPY]
        file[ENTROPY] = np.zeros(shape, dtype)
        file[ENTROPY].attrs.update(attributes)
    assert any(told in problem for problem in problems(path))


def test_a_changed_number_is_found_by_its_digest(written):
    path, _ = written
    with h5py.File(path, "r+") as file:
        file[TOP_KEY][0, 3] += 1
    [found] = problems(path, check=True)
    assert "/record/top_key was changed after it was written" in found


def test_a_shard_file_says_what_it_holds(tmp_path, rng):
    output, log_sum_exp, record = make_rows(rng, (1, 3, 4, 5), "float16")
    write_shard(tmp_path / "s", ranges=[range(4)], output=output, log_sum_exp=log_sum_exp, record=record)
    assert set(open_shard(tmp_path / "s").arrays) == {"/output", "/log_sum_exp", *RECORDED_ROWS}
    assert examine(tmp_path / "s").problems == ()
    record[ENTROPY] = record[ENTROPY][:, :, :3]
    with pytest.raises(ShapeError, match="record/entropy"):
        write_shard(tmp_path / "s", ranges=[range(4)], output=output, log_sum_exp=log_sum_exp, record=record)


def test_a_part_that_is_missing_is_no_result(tmp_path, rng):
    """HDF5 fills what it does not find: with NaN, and among positions with a number that is none."""
    arrays = make_rows(rng, (3, LENGTH, 5), "float32")
    path = write(tmp_path / "out.h5", SHARDINGS["contiguous"], *arrays, link_shards)
    next(tmp_path.glob("*.part-*-00000")).unlink()
    with h5py.File(path) as file:
        assert (file[TOP_KEY][:, :5] == np.iinfo(np.int64).min).all()
        assert np.isnan(file[ENTROPY][:, :5]).all()
    with pytest.raises(StorageError, match="part"), Results(path):
        pass


def test_room_for_them_is_asked_for_before(rng):
    shape = (3, LENGTH, 5)
    more = merge_bytes(result_shapes(shape, rows=True), np.dtype("f4")) - merge_bytes(
        result_shapes(shape), np.dtype("f4")
    )
    assert more == 2 * 3 * LENGTH * (4 * 4 + 8)


def test_states_hold_positions_of_64_bits(tmp_path, rng):
    keys = rng.integers(-1, 1 << 60, (1, 2, 6))
    write_rank_state(tmp_path / "s", {"record/top_key": StateArray([range(6)], keys)}, {})
    with RankState(tmp_path / "s") as state:
        out = np.zeros((1, 2, 3), np.int64)
        assert state.read_rows("record/top_key", [range(1, 6, 2)], out) == 3
        np.testing.assert_array_equal(out, keys[:, :, 1::2])
