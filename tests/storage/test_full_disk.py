"""A disk that is full after any number of bytes: one error, nothing half written, no complaint of HDF5, no crash."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import gc, resource, sys
from pathlib import Path
import numpy as np
from ringmpi.core.sharding import Sharding
from ringmpi.errors import StorageError
from tests.storage.samples import make_account, write_parts
from ringmpi.storage.layout import result_shapes
from ringmpi.storage.merge import merge_shards
from ringmpi.storage.rank_state import StateArray, write_rank_state
from ringmpi.storage.shards import write_shard
from ringmpi.storage.virtual import link_shards

how, folder, n = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
output, log_sum_exp = np.ones((2, n, 8), "f4"), np.ones((2, n), "f4")
before = resource.getrlimit(resource.RLIMIT_FSIZE)


def parts():
    return write_parts(folder / "out.h5", Sharding.contiguous(n, 2), output, log_sum_exp)


def write(held):
    if how == "shard":
        write_shard(folder / "out.h5", ranges=[range(n)], output=output[None], log_sum_exp=log_sum_exp[None])
    elif how == "state":
        write_rank_state(folder / "out.h5", {"sums": StateArray([range(n)], output[None])}, {"cursor": np.arange(n)})
    else:
        finish = merge_shards if how == "merge" else link_shards
        finish(held, folder / "out.h5", shapes=result_shapes(output.shape), account=make_account(2))


def size_of_whole():
    write(parts() if how in ("merge", "virtual") else [])
    size = (folder / "out.h5").stat().st_size
    for path in folder.iterdir():
        path.unlink()
    return size


size = size_of_whole()
for limit in sorted({*range(0, size, max(1, size // 60)), *range(0, min(size, 4000), 200), size - 1}):
    held = parts() if how in ("merge", "virtual") else []
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        write(held)
    except StorageError as error:
        found = str(error)
    else:
        found = "nothing was raised"
    gc.collect()
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    left = sorted(path.name for path in folder.iterdir() if path.name in ("out.h5", "out.h5.tmp"))
    if "out.h5: File too large" not in found or left:
        print(limit, "of", size, found, left)
    for path in folder.iterdir():
        path.unlink()
print("tried up to", size)
"""


@pytest.mark.parametrize("length", [3, 2000])
@pytest.mark.parametrize("how", ["shard", "state", "merge", "virtual"])
def test_a_disk_that_is_full_after_any_number_of_bytes(tmp_path, how, length):
    """In a process of its own: what HDF5 does after a failed write can end it."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how, tmp_path, str(length)],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    first, *others = done.stdout.splitlines()
    assert first.startswith("tried up to"), done.stdout
    assert not others
