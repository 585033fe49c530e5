"""Real ranks compute the bits of one rank."""

import numpy as np
import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from ringmpi import (
    Mask,
    Ring,
    Sharding,
    attention,
    attention_backward,
    backends,
    ring_attention,
    ring_attention_backward,
)
from tests.backends.rowwise import open_rowwise
from tests.mpi.transports import Late, Unpunctual

WORLD = MPI.COMM_WORLD
RANK_COUNTS = [1, 2, 3, 4, 5, 7]
LENGTH, BLOCK = 50, 4
MASK = Mask.window(20, 1) | Mask.sinks(3)
SCORES = {"softcap": 2.0, "alibi_slopes": [0.1, 0.3], "sink_logits": [0.5, -np.inf], "dropout": 0.2}


@pytest.fixture(scope="module")
def ring():
    return Ring(WORLD, timeout=30)


@pytest.fixture(autouse=True)
def rowwise(monkeypatch):
    monkeypatch.setitem(backends._OPENERS, "rowwise", (open_rowwise.__module__, open_rowwise.__name__))


def problem():
    """dO, q, k, v: two query heads on one key head."""
    rng = np.random.default_rng(3)
    return [rng.standard_normal((heads, LENGTH, 3), np.float32) for heads in (2, 2, 1, 1)]


def alone(arrays, **options):
    """Output, log_sum_exp and gradients of one rank, in one process."""
    options |= {"sharding": Sharding.contiguous(LENGTH, 1, block=BLOCK)}
    out = attention(*arrays[1:], **options)
    grads = attention_backward(*arrays, out, **options)
    return [out.output, out.log_sum_exp, *grads, grads.sink_logits]


def spread(ring, arrays, sharding, **options):
    """The shards of this rank, and those of the whole that they should be."""
    where = {"ring": ring, "sharding": sharding}
    upstream, *qkv = (sharding.take(array, ring) for array in arrays)
    out = ring_attention(*qkv, **where, **options)
    grads = ring_attention_backward(upstream, *qkv, out, **where, **options)
    whole = alone(arrays, **options)
    expected = [sharding.take(array if array.ndim == 3 else array[..., None], ring) for array in whole[:-1]]
    expected = [x.reshape(y.shape) for x, y in zip(expected, (out.output, out.log_sum_exp, *grads), strict=True)]
    return [out.output, out.log_sum_exp, *grads, grads.sink_logits], [*expected, whole[-1]]


@pytest.mark.parallel(RANK_COUNTS)
@pytest.mark.parametrize("name", ["contiguous", "zigzag", "striped"])
def test_any_number_of_real_ranks_computes_the_bits_of_one(ring, name):
    sharding = getattr(Sharding, name)(LENGTH, ring.size, block=BLOCK)
    options = {"mask": MASK, "reproducible": True, "backend": "rowwise"} | SCORES
    found, expected = spread(ring, problem(), sharding, **options)
    parallel_assert(all(x.tobytes() == y.tobytes() for x, y in zip(found, expected, strict=True)))


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("transport", [Late, lambda inner: Unpunctual(inner, 1, 0.002)], ids=["late", "unpunctual"])
def test_delays_change_no_bit(ring, transport, monkeypatch):
    monkeypatch.setattr(ring, "transport", transport(ring.transport))
    options = {"mask": MASK, "reproducible": True, "backend": "rowwise"} | SCORES
    found, expected = spread(ring, problem(), Sharding.zigzag(LENGTH, ring.size, block=BLOCK), **options)
    parallel_assert(all(x.tobytes() == y.tobytes() for x, y in zip(found, expected, strict=True)))
