"""What all ranks have saved, found by positions: every file is opened once, for all arrays that it has a part of."""

import numpy as np
import pytest

from ringmpi.checkpoint import saved_state
from ringmpi.checkpoint.saved_state import SavedState
from ringmpi.core.sharding import Sharding
from ringmpi.errors import StorageError
from ringmpi.storage.manifest import RankFile
from ringmpi.storage.rank_state import RankState, StateArray, write_rank_state

LENGTH, HEADS, DIM = 40, 2, 3
GROUPS = ("staying", "earlier", "load-0", "load-3")


@pytest.fixture
def opened(monkeypatch):
    """The names of the files that have been opened."""
    names = []
    monkeypatch.setattr(saved_state, "RankState", lambda path: names.append(path.name) or RankState(path))
    return names


@pytest.fixture
def sums(rng):
    """Whole arrays, integers for exact sums, by name; a load lies on a rank that owns none of its positions."""
    whole = lambda *dim: rng.integers(-99, 99, (1, HEADS, LENGTH, *dim)).astype(np.float64)  # noqa: E731
    gradients = {f"{group}/{name}": whole(DIM) for group in (*GROUPS, "given") for name in ("grad_key", "grad_value")}
    return {"row_max": whole(), "weighted_sum": whole(DIM)} | gradients


@pytest.fixture
def saved(tmp_path, sums):
    """On four ranks."""
    shards, files = Sharding.contiguous(LENGTH, 4), []
    for rank in range(4):
        owners = {name: (rank + 1) % 4 if name.startswith("load") else rank for name in sums}
        state = {
            name: StateArray(shards.shards[owner], sums[name][:, :, shards.positions(owner)])
            for name, owner in owners.items()
        }
        written = write_rank_state(tmp_path / f"rank-{rank:05d}.h5", state, {})
        ranges = {
            name: tuple((r.start, r.stop, r.step) for r in shards.shards[owner]) for name, owner in owners.items()
        }
        files.append(RankFile(**written._asdict(), pairs=0, absorbed=None, ranges=ranges))
    return SavedState(tmp_path, files)


def test_arrays_are_read_with_one_opening_of_each_file(saved, sums, opened):
    out = {"row_max": np.zeros((1, HEADS, 15)), "weighted_sum": np.zeros((1, HEADS, 15, DIM))}
    saved.read([range(5, 20)], out)
    for name, array in out.items():
        assert np.array_equal(array, sums[name][:, :, 5:20])
    assert opened == ["rank-00000.h5", "rank-00001.h5"], "each once, and none that has nothing of it"


def test_gradients_are_added_up_with_one_opening_of_each_file(saved, sums, opened):
    out = {name: np.zeros((1, HEADS, 15, DIM)) for name in ("grad_key", "grad_value")}
    saved.add_up([range(5, 20)], out)
    for name, array in out.items():
        expected = sum(sums[f"{group}/{name}"] for group in GROUPS)[:, :, 5:20]
        assert np.array_equal(array, expected)
    assert opened == ["rank-00000.h5", "rank-00001.h5", "rank-00003.h5"]  # rank 3 has loads of rank 0


def test_rows_that_are_missing_are_named(saved):
    with pytest.raises(StorageError, match=r"holds 5 of 10 rows of row_max that this rank needs: it was changed"):
        saved.read([range(35, 45)], {"row_max": np.zeros((1, HEADS, 10))})
