"""One output file that all ranks write together equals the merged one, bit by bit; needs an h5py with MPI."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from mpi4py import MPI

from ringmpi.core.sharding import Sharding
from ringmpi.errors import StorageError
from ringmpi.storage import parallel
from ringmpi.storage.layout import LOG_SUM_EXP, OUTPUT, result_shapes
from ringmpi.storage.merge import merge_shards
from ringmpi.storage.parallel import complete_output, write_together
from ringmpi.storage.rank_state import StateArray
from ringmpi.storage.shards import shard_path, write_shard
from tests.storage.samples import DTYPES, bits_of, make_account, make_arrays

pytestmark = pytest.mark.skipif(
    not h5py.get_config().mpi, reason="h5py is built without MPI: tests/lab/parallel_hdf5.sh"
)

COMM = MPI.COMM_WORLD


@pytest.fixture
def folder(tmp_path_factory):
    """One for all ranks."""
    return Path(COMM.bcast(str(tmp_path_factory.mktemp("together")) if COMM.rank == 0 else None))


def arrays_of(sharding, output, log_sum_exp):
    """The rows of this rank."""
    at, ranges = sharding.positions(COMM.rank), sharding.shards[COMM.rank]
    whole = (a if output.ndim == 4 else a[None] for a in (output, log_sum_exp))
    return {name: StateArray(ranges, array[:, :, at]) for name, array in zip((OUTPUT, LOG_SUM_EXP), whole, strict=True)}


@pytest.mark.parallel([1, 2, 3, 5])
@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        *(("zigzag", (2, 3, 17, 4), dtype) for dtype in DTYPES),
        *((name, (3, 41, 5), "float32") for name in ("contiguous", "striped", "blocks", "all on the last")),
        *((name, shape, "float64") for name in ("contiguous", "striped") for shape in [(2, 0, 4), (2, 3, 4)]),
    ],
)
def test_it_equals_the_merged_file(folder, name, shape, dtype):
    length = shape[-2]
    empty = [()] * (COMM.size - 1)
    sharding = {
        "contiguous": Sharding.contiguous(length, COMM.size),
        "zigzag": Sharding.zigzag(length, COMM.size),
        "striped": Sharding.striped(length, COMM.size),
        "blocks": Sharding.striped(length, COMM.size, block=4),
        "all on the last": Sharding.from_ranges(length, [*empty, [range(length)]]),
    }[name]
    output, log_sum_exp = make_arrays(np.random.default_rng(1), shape, dtype)
    rows = arrays_of(sharding, output, log_sum_exp)
    shapes, account = result_shapes(shape), make_account(COMM.size)
    write_together(folder / "parallel.h5", COMM, rows, shapes=shapes, slab_bytes=200)
    at, ranges = shard_path(folder / "serial.h5", COMM.rank), sharding.shards[COMM.rank]
    write_shard(at, ranges=ranges, output=rows[OUTPUT].array, log_sum_exp=rows[LOG_SUM_EXP].array)
    COMM.barrier()
    if COMM.rank == 0:
        complete_output(folder / "parallel.h5", shapes, {OUTPUT: sharding.shards}, account)
        parts = [shard_path(folder / "serial.h5", rank) for rank in range(COMM.size)]
        merge_shards(parts, folder / "serial.h5", shapes=shapes, account=account)
        assert contents(folder / "parallel.h5") == contents(folder / "serial.h5")
        with h5py.File(folder / "parallel.h5") as file:
            if dtype != DTYPES[1]:  # h5py does not read bfloat16
                assert np.array_equal(bits_of(file[OUTPUT][...]), bits_of(output))
    COMM.barrier()


def contents(path):
    """All that is in a file: bits of datasets, types, attributes."""
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, thing: found.update({name: all_of(thing)}))
        found["/"] = sorted(map(str, file.attrs.items()))
    return found


def all_of(thing):
    attributes = sorted(map(str, thing.attrs.items()))
    if isinstance(thing, h5py.Group):
        return attributes
    if thing.dtype.kind == "O":
        return thing.asstr()[...].tolist(), attributes
    bits = np.empty(thing.shape, f"V{thing.id.get_type().get_size()}")
    thing.id.read(h5py.h5s.ALL, h5py.h5s.ALL, bits, thing.id.get_type())
    return bits.tobytes(), thing.shape, thing.id.get_type().encode(), attributes


@pytest.mark.parallel([2, 3, 5])
@pytest.mark.parametrize("failing", [0, -1])
def test_a_rank_that_cannot_write_says_so_and_nothing_is_left(folder, monkeypatch, failing):
    """One of its writes fails; all others go on, and nobody waits for ever."""
    sharding, shapes = Sharding.contiguous(40, COMM.size), result_shapes((3, 40, 4))
    rows = arrays_of(sharding, *make_arrays(np.random.default_rng(1), (3, 40, 4), "float32"))
    calls, selected = iter(range(1000)), parallel._selected

    def selected_once(*arguments):
        if next(calls) == 1:
            raise OSError(28, "No space left on device")
        return selected(*arguments)

    if COMM.rank == failing % COMM.size:
        monkeypatch.setattr(parallel, "_selected", selected_once)
        with pytest.raises(StorageError, match=r"cannot write .*out\.h5: No space left on device"):
            write_together(folder / "out.h5", COMM, rows, shapes=shapes, slab_bytes=99)
    else:
        write_together(folder / "out.h5", COMM, rows, shapes=shapes, slab_bytes=99)
    COMM.barrier()
    assert not list(folder.iterdir())
