"""Arrays, accounts and files for the tests of storage."""

from pathlib import Path

import ml_dtypes
import numpy as np

from ringmpi.core.dtypes import accumulate_dtype
from ringmpi.core.sharding import Sharding
from ringmpi.storage.account import Account, PairCounts, Provenance, Timeline
from ringmpi.storage.layout import result_shapes
from ringmpi.storage.merge import merge_shards
from ringmpi.storage.shards import shard_path, write_shard

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = tuple(map(np.dtype, ("float16", BFLOAT16, "float32", "float64")))


def any_bits(rng, shape, dtype):
    """Every bit pattern: NaN with payload, infinities, -0, subnormals."""
    dtype = np.dtype(dtype)
    return rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]


def bits_of(array):
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def make_account(ranks, steps=3):
    grid = np.arange(ranks * steps).reshape(ranks, steps)
    return Account(
        Provenance(
            versions={"ringmpi": "0.1.0", "numpy": "2.4"},
            hosts=tuple(f"n{rank:03}" for rank in range(ranks)),
            ring_order=tuple(reversed(range(ranks))),
            configuration='[input]\nfile = "d\u00e9mo.h5"\n',
            command_line="ringmpi run demo.toml",
            started="2026-01-02T03:04:05+00:00",
            finished="2026-01-02T03:05:06+00:00",
            input_identity={"path": "/data/demo.h5", "size_bytes": 12345678901, "mtime_ns": 1767322800123456789},
        ),
        Timeline(
            attend_seconds=grid / 7,
            flight_seconds=grid / 9,
            wait_seconds=grid / 11,
            bytes_sent=grid + (1 << 40),
            bytes_received=grid + 1,
            pairs_attended=grid * 5,
            peak_memory_bytes=np.arange(ranks) + (1 << 35),
            read_seconds=np.arange(ranks) / 3,
            write_seconds=np.arange(ranks) / 13,
        ),
        PairCounts(pairs_asked=1 << 50, pairs_attended=(1 << 50) - 1, query_slabs=6),
    )


def make_arrays(rng, shape, dtype):
    """Output of `shape` [(batch,) heads, length, dim] and log_sum_exp to it, of any bits."""
    return any_bits(rng, shape, dtype), any_bits(rng, shape[:-1], accumulate_dtype(np.dtype(dtype)))


def write_parts(destination: Path, sharding: Sharding, output, log_sum_exp):
    """Shard files of all ranks, as a run leaves them before the merge."""
    output, log_sum_exp = (a[None] if output.ndim == 3 else a for a in (output, log_sum_exp))
    parts = []
    for rank, ranges in enumerate(sharding.shards):
        at = sharding.positions(rank)
        parts.append(shard_path(destination, rank))
        write_shard(parts[-1], ranges=ranges, output=output[:, :, at], log_sum_exp=log_sum_exp[:, :, at])
    return parts


def write_results(destination: Path, sharding: Sharding, output, log_sum_exp, **options):
    """The whole way of a result to its file."""
    parts = write_parts(destination, sharding, output, log_sum_exp)
    merge_shards(parts, destination, shapes=result_shapes(output.shape), account=make_account(len(parts)), **options)
    return destination
