"""What a ring follows from, in the output: there whole, or not at all."""

from dataclasses import replace

import h5py
import numpy as np
import pytest

from ringmpi.analysis.contents import examine
from ringmpi.core.sharding import Sharding
from ringmpi.errors import StorageError
from ringmpi.storage.account import PlacementAccount
from ringmpi.storage.layout import PLACEMENT, PLACEMENT_ATTRIBUTES, PLACEMENT_DATASETS, result_shapes
from ringmpi.storage.merge import merge_shards
from ringmpi.storage.results import Results
from tests.storage.samples import make_account, write_parts

PLACED = PlacementAccount(
    source="d\u00e9mo.conf",
    cost={"congestion": 1.5, "dilation": 4, "hops": 20},
    launch_cost={"congestion": 4.0, "dilation": 4, "hops": 32},
    lower_bound={"congestion": 1.0, "dilation": 4, "hops": 20},
    proved_optimal=False,
    unplaced=("stray1", "stray2"),
)


def written(folder, placement):
    output, log_sum_exp = np.zeros((2, 12, 4), np.float32), np.zeros((2, 12), np.float32)
    path = folder / "out.h5"
    account = replace(make_account(3), placement=placement)
    parts = write_parts(path, Sharding.contiguous(12, 3), output, log_sum_exp)
    merge_shards(parts, path, shapes=result_shapes(output.shape), account=account)
    return path


@pytest.mark.parametrize("placement", [PLACED, replace(PLACED, unplaced=(), proved_optimal=True), None])
def test_a_placement_comes_back(tmp_path, placement):
    path = written(tmp_path, placement)
    with Results(path) as results:
        assert results.account.placement == placement
    assert not [problem for problem in examine(path).problems if "placement" in problem]
    with h5py.File(path) as file:
        assert (PLACEMENT in file) == (placement is not None)


@pytest.mark.parametrize("layout", [*PLACEMENT_DATASETS, *PLACEMENT_ATTRIBUTES], ids=lambda layout: str(layout)[:60])
def test_a_part_of_it_that_is_missing_is_named(tmp_path, layout):
    path = written(tmp_path, PLACED)
    with h5py.File(path, "r+") as file:
        if layout in PLACEMENT_DATASETS:
            del file[layout.path]
        else:
            del file[layout.path].attrs[layout.name]
    with pytest.raises(StorageError, match=layout.path), Results(path):
        pass
    assert any(layout.path in problem and "is missing" in problem for problem in examine(path).problems)


def test_its_words_tell_costs_bound_and_what_is_not_placed():
    assert PLACED.words == (
        "by d\u00e9mo.conf: congestion, dilation, hops 1.5, 4, 20 (launch order 4, 4, 32), the least possible 1, 4, "
        "20; 2 hosts are not in it"
    )
    assert replace(PLACED, proved_optimal=True, unplaced=()).words.endswith(
        "(launch order 4, 4, 32), no ring is better"
    )
