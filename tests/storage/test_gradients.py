"""Gradients in shard files, merged and virtual outputs: every bit in its place, all of them or none."""

import hashlib
from dataclasses import replace

import h5py
import numpy as np
import pytest

from ringmpi.core.sharding import Sharding
from ringmpi.errors import ShapeError, StorageError
from ringmpi.storage.account import BackwardAccount, PassTimeline
from ringmpi.storage.layout import GRADIENT_ATTRIBUTES, GRADIENT_DATASETS, GRADIENTS, result_shapes
from ringmpi.storage.merge import merge_bytes, merge_shards
from ringmpi.storage.results import Results
from ringmpi.storage.shards import ShardGradients, open_shard, shard_path, write_shard
from ringmpi.storage.virtual import link_shards
from tests.storage.samples import BFLOAT16, DTYPES, any_bits, bits_of, make_account, make_arrays

QUERIES, KEYS = 31, 23
QUERY_SHARDS, KEY_SHARDS = Sharding.striped(QUERIES, 3), Sharding.zigzag(KEYS, 3)


def make_gradients(rng, dtype, batch=(2,)):
    shapes = ((*batch, 4, QUERIES, 5), (*batch, 2, KEYS, 5), (*batch, 2, KEYS, 6))
    return [any_bits(rng, shape, dtype) for shape in shapes]


def make_backward(ranks=3, steps=4):
    grid = np.arange(ranks * steps).reshape(ranks, steps)
    return BackwardAccount(PassTimeline(grid / 7, grid / 8, grid / 9, grid, grid + 1, grid * 5), 1 << 50, 77, "queries")


def write_parts(destination, arrays, gradients):
    output, log_sum_exp, query, key, value = (a[None] if arrays[0].ndim == 3 else a for a in (*arrays, *gradients))
    parts = [shard_path(destination, rank) for rank in range(3)]
    for rank, part in enumerate(parts):
        rows, keys = QUERY_SHARDS.positions(rank), KEY_SHARDS.positions(rank)
        write_shard(
            part,
            ranges=QUERY_SHARDS.shards[rank],
            output=output[:, :, rows],
            log_sum_exp=log_sum_exp[:, :, rows],
            gradients=ShardGradients(query[:, :, rows], key[:, :, keys], value[:, :, keys], KEY_SHARDS.shards[rank]),
        )
    return parts


def write_results(tmp_path, rng, *, dtype="float32", batch=(2,), finish=merge_shards, **options):
    arrays = make_arrays(rng, (*batch, 4, QUERIES, 6), dtype)
    gradients = make_gradients(rng, dtype, batch)
    parts = write_parts(tmp_path / "out.h5", arrays, gradients)
    shapes = result_shapes(arrays[0].shape, gradients[1].shape)
    account = replace(make_account(3), backward=make_backward())
    finish(parts, tmp_path / "out.h5", shapes=shapes, account=account, **options)
    return gradients


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("finish", [merge_shards, link_shards])
@pytest.mark.parametrize("slab_bytes", [100, 1 << 20])
def test_every_bit_is_in_its_place(tmp_path, rng, dtype, batch, finish, slab_bytes):
    gradients = write_results(tmp_path, rng, dtype=dtype, batch=batch, finish=finish, slab_bytes=slab_bytes)
    with Results(tmp_path / "out.h5") as results:
        assert tuple(results.gradients) == GRADIENTS
        assert results.key_shards == KEY_SHARDS.shards
        assert results.shards == QUERY_SHARDS.shards
        for array, gradient in zip(results.gradients.values(), gradients, strict=True):
            assert array.shape == gradient.shape
            found = array.rows(np.arange(array.length)).reshape(gradient.shape)
            assert (bits_of(found) == bits_of(gradient)).all()
            assert array.recorded_digest == hashlib.blake2b(gradient.tobytes(), digest_size=32).hexdigest()


def test_the_record_of_the_backward_pass_comes_back(tmp_path, rng):
    write_results(tmp_path, rng)
    with Results(tmp_path / "out.h5") as results:
        found, written = results.account.backward, make_backward()
        assert (found.travel, found.pairs_asked, found.pairs_attended) == ("queries", 1 << 50, 77)
        for name, counter in vars(written.timeline).items():
            assert (getattr(found.timeline, name) == counter).all()
            assert getattr(found.timeline, name).dtype == counter.dtype


def test_the_layout_lists_all_that_is_written(tmp_path, rng):
    write_results(tmp_path, rng)
    with h5py.File(tmp_path / "out.h5") as file:
        for layout in GRADIENT_DATASETS:
            assert file[layout.path].attrs["meaning"] == layout.meaning
            assert file[layout.path].ndim in (len(layout.axes), len(layout.axes) - 1)
        for attribute in GRADIENT_ATTRIBUTES:
            assert attribute.name in file[attribute.path].attrs


@pytest.mark.parametrize(
    "name", ["grad_query", "grad_value", "key_shards", "timeline_backward", "timeline_backward/bytes_sent"]
)
def test_gradients_are_there_whole_or_not_at_all(tmp_path, rng, name):
    write_results(tmp_path, rng)
    with h5py.File(tmp_path / "out.h5", "r+") as file:
        del file[name]
    with pytest.raises(StorageError, match=f"lacks .*/{name}"), Results(tmp_path / "out.h5"):
        pass


def test_gradients_of_other_shapes_are_refused(tmp_path, rng):
    write_results(tmp_path, rng)
    with h5py.File(tmp_path / "out.h5", "r+") as file:
        digest = file["grad_key"].attrs["blake2b"]
        del file["grad_key"]
        file["grad_key"] = np.zeros((2, 2, KEYS + 1, 5), "f4")
        file["grad_key"].attrs["blake2b"] = digest
    with pytest.raises(StorageError, match=r"grad_value \(2, 2, 23, 6\); expected .*/grad_value \(2, 2, 24, 6\)"):
        Results(tmp_path / "out.h5").__enter__()


def test_a_missing_part_of_a_virtual_output_is_named(tmp_path, rng):
    write_results(tmp_path, rng, finish=link_shards)
    next(tmp_path.glob("out.h5.part-*-00001")).unlink()
    with pytest.raises(StorageError, match="sources are missing"):
        Results(tmp_path / "out.h5").__enter__()


def test_keys_that_two_ranks_hold_are_refused(tmp_path, rng):
    arrays, gradients = make_arrays(rng, (2, 4, QUERIES, 6), "float32"), make_gradients(rng, "float32")
    parts = write_parts(tmp_path / "out.h5", arrays, gradients)
    with h5py.File(parts[1], "r+") as file:
        file["key_shards"][0] -= [1, 1, 0]
    with pytest.raises(StorageError, match="position 2 is in 2 of the 3 shards"):
        merge_shards(
            parts,
            tmp_path / "out.h5",
            shapes=result_shapes(arrays[0].shape, gradients[1].shape),
            account=replace(make_account(3), backward=make_backward()),
        )


def test_a_shard_file_without_gradients_among_those_with_them_is_refused(tmp_path, rng):
    arrays, gradients = make_arrays(rng, (2, 4, QUERIES, 6), "float32"), make_gradients(rng, "float32")
    parts = write_parts(tmp_path / "out.h5", arrays, gradients)
    rows = QUERY_SHARDS.positions(2)
    write_shard(
        parts[2], ranges=QUERY_SHARDS.shards[2], output=arrays[0][:, :, rows], log_sum_exp=arrays[1][:, :, rows]
    )
    with pytest.raises(StorageError, match="shard-00002 holds .*; expected .*grad_query"):
        merge_shards(
            parts,
            tmp_path / "out.h5",
            shapes=result_shapes(arrays[0].shape, gradients[1].shape),
            account=replace(make_account(3), backward=make_backward()),
        )


def test_gradients_that_do_not_fit_their_rank_are_refused(tmp_path, rng):
    output, log_sum_exp = np.zeros((1, 2, 5, 4), "f4"), np.zeros((1, 2, 5), "f4")
    good = ShardGradients(np.zeros((1, 2, 5, 3)), np.zeros((1, 1, 7, 3)), np.zeros((1, 1, 7, 4)), [range(7)])
    for change in ({"query": np.zeros((1, 2, 4, 3))}, {"value": np.zeros((1, 1, 7, 5))}, {"key_ranges": [range(6)]}):
        with pytest.raises(ShapeError, match="do not fit; expected the rows of the output"):
            write_shard(
                tmp_path / "s",
                ranges=[range(5)],
                output=output,
                log_sum_exp=log_sum_exp,
                gradients=replace(good, **change),
            )
    write_shard(tmp_path / "s", ranges=[range(5)], output=output, log_sum_exp=log_sum_exp, gradients=good)
    assert open_shard(tmp_path / "s").arrays["/grad_key"].ranges == (range(7),)


def test_merge_bytes_counts_gradients(tmp_path, rng):
    arrays, gradients = make_arrays(rng, (2, 4, QUERIES, 6), BFLOAT16), make_gradients(rng, BFLOAT16)
    payload = 2 * sum(array.nbytes for array in (*arrays, *gradients))
    assert merge_bytes(result_shapes(arrays[0].shape, gradients[1].shape), BFLOAT16) == payload + (1 << 20)


def test_a_rank_without_queries_and_keys_is_whole(tmp_path):
    """As blocks of positions leave some ranks, with fewer key heads than query heads."""
    path = shard_path(tmp_path / "out.h5", 0)
    query, key, value = (np.empty((1, heads, 0, 5), np.float32) for heads in (4, 2, 2))
    output, log_sum_exp = query, np.empty((1, 4, 0), np.float32)
    gradients = ShardGradients(query, key, value, ())
    write_shard(path, ranges=(), output=output, log_sum_exp=log_sum_exp, gradients=gradients)
    assert open_shard(path).arrays["/grad_key"].shape == (1, 2, 0, 5)
