"""What a pass does with the arrays that it is given: it reads them where they lie."""

import tracemalloc

import numpy as np
import pytest

from ringmpi import Mask, Sharding, attention
from ringmpi.backends.numpy.attend import NumpyBackend
from ringmpi.core.problem import pose_problem
from ringmpi.core.rank_work import RankWork
from ringmpi.passes.forward_pass import ForwardPass

LENGTH = 60


def adopted(sharding, schedule):
    """(keys of rank 0, what a forward pass that has adopted them attends to, piece by piece)."""
    whole = np.zeros((1, 2, LENGTH, 8), np.float32)
    problem = pose_problem(
        (whole,) * 3, mask=Mask.full(), queries=sharding, keys=sharding, schedule=schedule, scale=None
    )
    pairs = np.stack([RankWork(problem, rank).pairs() for rank in range(problem.size)])
    forward = ForwardPass(problem, 0, NumpyBackend(), pairs[0], pairs > 0)
    keys = np.arange(2 * sharding.shard_length(0) * 8, dtype=np.float32).reshape(1, 2, -1, 8)
    forward.adopt(keys, keys + 1)
    return keys, [payload[0] for _, payload in forward.own_payloads()]


@pytest.mark.parametrize(
    ("sharding", "schedule"),
    [
        (Sharding.contiguous(LENGTH, 3), "ring"),
        (Sharding.striped(LENGTH, 3), "all-gather"),
        (Sharding.zigzag(LENGTH, 1), "ring"),
        (Sharding.contiguous(LENGTH, 1), "bidirectional"),
    ],
    ids=lambda option: getattr(option, "name", option),
)
def test_contiguous_shards_are_not_copied_and_neither_is_what_stays(sharding, schedule):
    keys, pieces = adopted(sharding, schedule)
    assert all(np.shares_memory(piece, keys) for piece in pieces)
    assert sum(piece.shape[2] for piece in pieces) == keys.shape[2]


@pytest.mark.parametrize("schedule", ["ring", "bidirectional"])
def test_parts_of_a_shard_that_are_sent_are_contiguous(schedule):
    keys, pieces = adopted(Sharding.zigzag(LENGTH, 3), schedule)
    assert len(pieces) > 1
    assert all(piece.flags.c_contiguous for piece in pieces)
    assert np.array_equal(np.sort(np.concatenate(pieces, axis=2), axis=2), np.sort(keys, axis=2))


@pytest.mark.parametrize("sharding", ["contiguous", "zigzag", "striped"])
def test_attention_in_one_process_makes_no_copy_of_its_inputs(sharding, rng):
    """Traced are the carried partial and the output, one array each, and tiles."""
    q, k, v = rng.standard_normal((3, 4, 4096, 64), dtype=np.float32)

    def run(length):
        attention(*(x[:, :length] for x in (q, k, v)), mask=Mask.window(16, 0), sharding=sharding, backend="numpy")

    run(64)  # what is loaded once is no copy
    tracemalloc.start()
    run(4096)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * q.nbytes
