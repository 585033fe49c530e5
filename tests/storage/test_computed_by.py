"""What computed an output, in the output: there whole, or not at all, as in outputs of earlier versions."""

from dataclasses import replace

import h5py
import numpy as np
import pytest

from ringmpi.analysis.contents import examine
from ringmpi.core.sharding import Sharding
from ringmpi.errors import ShapeError, StorageError
from ringmpi.storage.computed_by import (
    COMPUTED_BY,
    COMPUTED_BY_ATTRIBUTES,
    COMPUTED_BY_DATASETS,
    ComputedBy,
)
from ringmpi.storage.layout import result_shapes
from ringmpi.storage.merge import merge_shards
from ringmpi.storage.results import Results
from tests.storage.samples import make_account, write_parts

COMPUTED = ComputedBy(
    backend=("native", "numpy", "native"),
    arithmetic=("avx2", "numpy", "avx2"),
    threads=(1, 4, 2),
    node_cores=(4, 4, 4),
    schedule="ring",
    sharding={"queries": "zigzag", "keys": "striped"},
    problem={"key_heads": 2, "head_dim": 8, "key_length": 12, "mask": "(causal & full)", "scale": 8**-0.5},
)


def written(folder, computed_by):
    output, log_sum_exp = np.zeros((2, 12, 4), np.float32), np.zeros((2, 12), np.float32)
    path = folder / "out.h5"
    parts = write_parts(path, Sharding.contiguous(12, 3), output, log_sum_exp)
    account = replace(make_account(3), computed_by=computed_by)
    merge_shards(parts, path, shapes=result_shapes(output.shape), account=account)
    return path


@pytest.mark.parametrize("computed_by", [COMPUTED, None])
def test_it_comes_back(tmp_path, computed_by):
    path = written(tmp_path, computed_by)
    with Results(path) as results:
        assert results.account.computed_by == computed_by
    assert not [problem for problem in examine(path).problems if "computed_by" in problem]
    with h5py.File(path) as file:
        assert (COMPUTED_BY in file) == (computed_by is not None)


@pytest.mark.parametrize(
    "layout", [*COMPUTED_BY_DATASETS, *COMPUTED_BY_ATTRIBUTES], ids=lambda layout: str(layout)[:60]
)
def test_a_part_of_it_that_is_missing_is_named(tmp_path, layout):
    path = written(tmp_path, COMPUTED)
    with h5py.File(path, "r+") as file:
        if layout in COMPUTED_BY_DATASETS:
            del file[layout.path]
        else:
            del file[layout.path].attrs[layout.name]
    with pytest.raises(StorageError, match=layout.path), Results(path):
        pass
    assert any(layout.path in problem and "is missing" in problem for problem in examine(path).problems)


def test_a_rank_that_it_does_not_know_is_refused():
    with pytest.raises(ShapeError, match=r"computed_by has \{2, 3\} ranks; expected 3"):
        replace(make_account(3), computed_by=replace(COMPUTED, threads=(1, 2)))


def test_its_words():
    assert COMPUTED.words == (
        "native (avx2), numpy, 1 to 4 threads per rank; schedule ring, sharding queries zigzag, keys striped"
    )
    same = replace(COMPUTED, threads=(1, 1, 1), sharding={"queries": "zigzag", "keys": "zigzag"})
    assert same.words.endswith("1 thread per rank; schedule ring, sharding zigzag")
