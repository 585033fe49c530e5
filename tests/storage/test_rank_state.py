"""The state of a rank comes back bit by bit, and by positions to ranks that are sharded in another way."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmpi.core.sharding import Sharding
from ringmpi.errors import ShapeError, StorageError
from ringmpi.storage import files, source
from ringmpi.storage.generations import Checkpoints
from ringmpi.storage.rank_state import RankState, StateArray, write_rank_state
from tests.storage.checkpoint_samples import save_generation
from tests.storage.samples import DTYPES, any_bits, bits_of

SHARDINGS = ("contiguous", "zigzag", "striped")


def shard(name, length, size):
    return getattr(Sharding, name)(length, size)


def whole(state, name):
    out = np.empty(state.arrays[name].shape, state.arrays[name].dtype)
    state.read(name, out)
    return out


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_comes_back(tmp_path, rng, dtype):
    sums = any_bits(rng, (2, 3, 7, 5), dtype)
    other_strides = any_bits(rng, (2, 7, 3), dtype).swapaxes(1, 2)
    held = {"load/17/grad_value": StateArray([range(3, 17, 2)], sums), "maximum": StateArray([range(7)], other_strides)}
    cursor = np.array([1, 1 << 62, -1])
    write_rank_state(tmp_path / "rank-00000.h5", held, {"cursor": cursor, "step": np.array(5)})
    with RankState(tmp_path / "rank-00000.h5") as state:
        assert state.ranges == {"load/17/grad_value": (range(3, 17, 2),), "maximum": (range(7),)}
        assert np.array_equal(state.tables["cursor"], cursor)
        assert int(state.tables["step"]) == 5
        assert np.array_equal(bits_of(whole(state, "load/17/grad_value")), bits_of(sums))
        assert np.array_equal(bits_of(whole(state, "maximum")), bits_of(other_strides))


def test_a_rank_without_rows_has_a_state_too(tmp_path):
    write_rank_state(tmp_path / "rank.h5", {"sums": StateArray([], np.empty((1, 2, 0, 4), "f4"))}, {})
    with RankState(tmp_path / "rank.h5") as state:
        assert whole(state, "sums").shape == (1, 2, 0, 4)
        assert state.read_rows("sums", [range(3)], np.zeros((1, 2, 3, 4), "f4")) == 0


@given(
    st.integers(0, 40), *[st.sampled_from(SHARDINGS)] * 2, *[st.integers(1, 5)] * 2, st.sampled_from([1, 60, 1 << 20])
)
def test_rows_find_their_place_on_other_ranks(tmp_path_factory, length, before, after, old, new, slab_bytes):
    folder, rng = tmp_path_factory.mktemp("state"), np.random.default_rng(length)
    sums, logs = rng.standard_normal((2, 2, length, 3), "f4"), rng.standard_normal((2, 2, length), "f4")
    olds, news = shard(before, length, old), shard(after, length, new)
    for rank, ranges in enumerate(olds.shards):
        at = olds.positions(rank)
        held = {"sums": StateArray(ranges, sums[:, :, at]), "logs": StateArray(ranges, logs[:, :, at])}
        write_rank_state(folder / f"{rank}", held, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source.ArraySource, "place_rows", cut_to(slab_bytes, source.ArraySource.place_rows))
        patch.setattr(source.ArraySource, "add_rows", cut_to(slab_bytes, source.ArraySource.add_rows))
        for rank, ranges in enumerate(news.shards):
            at, found = news.positions(rank), 0
            copied, added = np.full((2, 2, len(at), 3), 7, "f4"), np.full((2, 2, len(at)), 7, "f4")
            for file in range(old):
                with RankState(folder / f"{file}") as state:
                    found += state.read_rows("sums", ranges, copied)
                    state.read_rows("logs", ranges, added, add=True)
            assert found == len(at)
            assert np.array_equal(copied, sums[:, :, at])
            assert np.array_equal(added, logs[:, :, at] + np.float32(7))


def cut_to(slab_bytes, method):
    return lambda self, maps, out: method(self, maps, out, slab_bytes=slab_bytes)


def test_what_is_not_in_the_file_is_left_alone(tmp_path, rng):
    sums = rng.standard_normal((1, 2, 4, 3), "f4")
    write_rank_state(tmp_path / "rank.h5", {"sums": StateArray([range(10, 14)], sums)}, {})
    out = np.full((1, 2, 6, 3), 7, "f4")
    with RankState(tmp_path / "rank.h5") as state:
        assert state.read_rows("sums", [range(5, 8), range(12, 15)], out) == 2
    assert (out[:, :, [0, 1, 2, 5]] == 7).all()
    assert np.array_equal(out[:, :, 3:5], sums[:, :, 2:])


def test_reading_by_position_needs_no_more_than_a_slab(tmp_path, rng):
    sums = rng.standard_normal((1, 4, 4000, 64), "f4")
    write_rank_state(tmp_path / "rank.h5", {"sums": StateArray([range(4000)], sums)}, {})
    out = np.empty((1, 4, 2000, 64), "f4")
    with RankState(tmp_path / "rank.h5") as state, pytest.MonkeyPatch.context() as patch:
        patch.setattr(source.ArraySource, "place_rows", cut_to(1 << 16, source.ArraySource.place_rows))
        tracemalloc.start()
        state.read_rows("sums", [range(1000, 3000)], out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert np.array_equal(out, sums[:, :, 1000:3000])
    assert peak < 4 << 16


def test_a_state_that_does_not_reach_the_disk_is_an_error(tmp_path, monkeypatch):
    def fail(path):
        raise OSError(5, "disk gone")

    monkeypatch.setattr("ringmpi.storage.files.sync", fail)
    with pytest.raises(StorageError, match=r"cannot write .*rank\.h5: Input/output error"):
        write_rank_state(tmp_path / "rank.h5", {"sums": StateArray([range(4)], np.zeros((1, 2, 4, 3), "f4"))}, {})
    assert list(tmp_path.iterdir()) == []


def test_the_names_of_all_files_reach_the_disk_with_the_manifest(tmp_path, rng, monkeypatch):
    """Many ranks write into one folder: it is made and synced once, by the rank that publishes."""
    checkpoints, sync, synced = Checkpoints(tmp_path), files.sync, []
    monkeypatch.setattr(files, "sync", lambda path: synced.append(path) or sync(path))
    save_generation(checkpoints, rng)
    folder = checkpoints.rank_path(1, 0).parent
    assert [path.name for path in synced if path.parent == folder][-1] == "manifest.json.tmp"
    assert synced[-1] == folder
    assert synced.count(folder) == 1


def test_arrays_and_positions_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(ShapeError, match=r"sums \(1, 2, 4, 3\) and 5 positions"):
        write_rank_state(tmp_path / "rank.h5", {"sums": StateArray([range(5)], np.zeros((1, 2, 4, 3), "f4"))}, {})
    write_rank_state(tmp_path / "rank.h5", {"sums": StateArray([range(4)], np.zeros((1, 2, 4, 3), "f4"))}, {})
    with RankState(tmp_path / "rank.h5") as state:
        for out in (np.zeros((1, 2, 3, 3), "f4"), np.zeros((1, 2, 4, 3), "f8")):
            with pytest.raises(ShapeError, match=r"expected \(1, 2, 4, 3\) float32"):
                state.read_rows("sums", [range(4)], out)


def test_another_file_is_no_state(tmp_path):
    import h5py

    with h5py.File(tmp_path / "rank.h5", "w") as file:
        file.attrs["schema"] = "ringmpi-shard"
    with pytest.raises(StorageError, match="is 'ringmpi-shard' of version None; expected 'ringmpi-state'"):
        RankState(tmp_path / "rank.h5").__enter__()
