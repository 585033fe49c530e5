"""Generations of checkpoints with random arrays, for the tests of their files."""

from ringmpi.core.sharding import Sharding
from ringmpi.storage.manifest import Manifest, RankFile
from ringmpi.storage.rank_state import StateArray, write_rank_state
from tests.storage.samples import any_bits


def make_state(rng, sharding, rank, *, dtype="float32", heads=2, dim=4):
    """The arrays of one rank, of any bits: sums of its rows, and a gradient of some of them."""
    ranges = sharding.shards[rank]
    rows = sharding.shard_length(rank)
    return {
        "row_max": StateArray(ranges, any_bits(rng, (1, heads, rows), dtype)),
        "weighted_sum": StateArray(ranges, any_bits(rng, (1, heads, rows, dim), dtype)),
        "load/0/grad_key": StateArray(ranges[:1], any_bits(rng, (1, heads, sum(map(len, ranges[:1])), dim), "float16")),
    }


def make_manifest(number, files, **facts):
    facts = {"identity": {"mask": "causal"}, "layout": {"ranks": len(files)}, "progress": {"stage": "forward"}} | facts
    return Manifest(
        generation=number, created="2026-01-02T03:04:05+00:00", ringmpi="0.1.0", attempts=(), files=files, **facts
    )


def write_files(checkpoints, number, rng, sharding, **options):
    """The files of all ranks, as the manifest lists them."""
    files = []
    checkpoints.begin(number)
    for rank in range(sharding.size):
        state = make_state(rng, sharding, rank, **options)
        written = write_rank_state(checkpoints.rank_path(number, rank), state, {"cursor": rng.integers(0, 9, 5)})
        files.append(RankFile(**written._asdict(), pairs=rank * 7, absorbed=[[0, 5, 0, rank + 1, -9, 9]]))
    return files


def save_generation(checkpoints, rng, sharding=None, *, keep=None, **options):
    """One more generation, as a run leaves it; its number."""
    number = checkpoints.next_number()
    files = write_files(checkpoints, number, rng, sharding or Sharding.zigzag(41, 3), **options)
    checkpoints.publish(make_manifest(number, files), keep=keep)
    return number
