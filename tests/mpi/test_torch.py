"""ringmpi.torch on real ranks: autograd over the whole ring, torch's own gradients on a real layer, a training."""

from inspect import signature
from pathlib import Path

import h5py
import numpy as np
import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

import ringmpi.api.attention
import ringmpi.api.backward
from ringmpi import Mask, Ring, Sharding
from ringmpi.errors import BackendError, RingError
from tests.tolerances import CURVE_TOLERANCE, assert_within

torch = pytest.importorskip("torch", reason="PyTorch is not installed here: make test-torch")
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from docs.examples.ring_transformer import train  # noqa: E402
from ringmpi.torch import ring_attention  # noqa: E402

WORLD = MPI.COMM_WORLD
REAL = Path(__file__).parents[2] / "data/smollm2_kjv_2048.h5"


@pytest.fixture(scope="module")
def ring():
    return Ring(WORLD, timeout=30)


def total(ring, tensor):
    """The sum over ranks, in the order of ranks."""
    return sum(ring.transport.exchange(tensor))


class Replicated(torch.autograd.Function):
    """What every rank holds: its gradient is the sum of all ranks' shares."""

    @staticmethod
    def forward(ctx, whole, ring):
        ctx.ring = ring
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx, grad):
        return total(ctx.ring, grad), None


class Gathered(torch.autograd.Function):
    """The shards of all ranks, put together on every rank, for a loss that all ranks compute alike."""

    @staticmethod
    def forward(ctx, shard, ring, sharding):
        ctx.mine = torch.from_numpy(sharding.positions(ring.rank))
        whole = shard.new_zeros(shard.shape[0], sharding.length, *shard.shape[2:])
        for rank, part in enumerate(ring.transport.exchange(shard)):
            whole[:, sharding.positions(rank)] = part
        return whole

    @staticmethod
    def backward(ctx, grad):
        return grad[:, ctx.mine], None, None


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize(("schedule", "travel"), [("ring", "keys"), ("bidirectional", "queries")])
def test_gradcheck_of_the_whole_ring(ring, schedule, travel):
    generator = torch.Generator().manual_seed(1)
    shapes = (2, 5, 3), (1, 6, 3), (1, 6, 2), (2,), (2,)
    inputs = [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]
    shards = [[range(0, 1), range(3, 5)], [range(1, 3)], []] if ring.size > 1 else [[range(5)]]
    queries = Sharding.from_ranges(5, shards[: ring.size])
    keys = Sharding.striped(6, ring.size)

    def both(*whole):
        q, k, v, sinks, slopes = (Replicated.apply(x, ring) for x in whole)
        outputs = ring_attention(
            *(x[:, owner.positions(ring.rank)] for x, owner in zip((q, k, v), (queries, keys, keys), strict=True)),
            ring=ring,
            sharding=queries,
            key_sharding=keys,
            mask=Mask.causal(),
            softcap=2.0,
            sink_logits=sinks,
            alibi_slopes=slopes,
            schedule=schedule,
            travel=travel,
            return_log_sum_exp=True,
        )
        return tuple(Gathered.apply(x, ring, queries) for x in outputs)

    assert torch.autograd.gradcheck(both, inputs, fast_mode=True)


def recorded(monkeypatch, module, name):
    """The options of the next call of a function, which still does its work."""
    given, call = {}, getattr(module, name)
    monkeypatch.setattr(module, name, lambda *arrays, **options: given.update(options) or call(*arrays, **options))
    return given


@pytest.mark.parallel([1, 2])
def test_every_option_reaches_both_passes(ring, monkeypatch):
    names = set(signature(ringmpi.api.attention.ring_attention).parameters) - {"record"} | {
        "travel",
        "return_log_sum_exp",
    }
    assert set(signature(ring_attention).parameters) == names
    owned = Sharding.striped(8 * ring.size, ring.size), Sharding.contiguous(8 * ring.size, ring.size)
    options = {"ring": ring, "sharding": owned[0], "key_sharding": owned[1], "mask": Mask.causal(), "scale": 0.5}
    options |= {
        "softcap": 2.0,
        "dropout": 0.1,
        "seed": 3,
        "schedule": "all-gather",
        "reproducible": False,
        "backend": "numpy",
    }
    numbers = {"sink_logits": [1.0, 2.0], "alibi_slopes": [0.2, 0.1]}
    forward = recorded(monkeypatch, ringmpi.api.attention, "ring_attention")
    backward = recorded(monkeypatch, ringmpi.api.backward, "ring_attention_backward")
    shards = [torch.ones(2, 8, 4, requires_grad=True) for _ in range(3)]
    ring_attention(*shards, travel="queries", **options, **numbers).sum().backward()
    parallel_assert(backward.pop("grad_log_sum_exp") is None)
    parallel_assert(backward.pop("travel") == "queries")
    for given in (forward, backward):
        parallel_assert({name: given.pop(name).tolist() for name in numbers} == numbers)
        parallel_assert(given == options)
    parallel_assert(names - {"q", "k", "v", "travel", "return_log_sum_exp"} == {*options, *numbers})


@pytest.mark.parallel([3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gradients_of_a_real_layer_are_as_near_to_the_truth_as_those_of_torch(ring, dtype):
    with h5py.File(REAL) as file:
        inputs = [torch.from_numpy(file[f"layer12/{name}"][:]) for name in "qkv"]
    grad_output = torch.randn(9, 2048, 64, generator=torch.Generator().manual_seed(1)).half()
    sharding = Sharding.zigzag(2048, ring.size)
    mine = torch.from_numpy(sharding.positions(ring.rank))
    shards = [x.to(dtype)[:, mine].requires_grad_() for x in inputs]
    output = ring_attention(*shards, ring=ring, sharding=sharding, mask=Mask.causal())
    output.backward(grad_output.to(dtype)[:, mine])
    found = [Gathered.apply(x, ring, sharding).numpy() for x in (output.detach(), *(x.grad for x in shards))]

    def of_torch(dtype):
        leaves = [x[None].to(dtype).requires_grad_() for x in inputs]
        output = scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)
        output.backward(grad_output[None].to(dtype))
        return [x.detach()[0].numpy() for x in (output, *(leaf.grad for leaf in leaves))]

    if ring.rank == 0:
        for ours, theirs, exact in zip(found, of_torch(dtype), of_torch(torch.float64), strict=True):
            assert_within(ours, theirs, exact, value_scale=0)
    ring.transport.exchange(None)


@pytest.mark.parallel([2, 3])
def test_ranks_that_disagree_about_gradients_refuse_together(ring):
    shards = [torch.ones(2, 4, 8, requires_grad=True) for _ in range(3)]
    with torch.set_grad_enabled(ring.rank != 1), pytest.raises(RingError, match=r"rank 1 .* need of gradients"):
        ring_attention(*shards, ring=ring, sharding=Sharding.contiguous(4 * ring.size, ring.size))


@pytest.mark.parallel([2, 3])
def test_a_tensor_that_one_rank_cannot_read_is_refused_by_all(ring):
    q = torch.ones(2, 4, 8, device="meta" if ring.rank == 1 else "cpu")
    k, v = torch.ones(2, 2, 4, 8)
    with pytest.raises(BackendError, match=r"rank 1 \(node .+\): q is on meta"):
        ring_attention(q, k, v, ring=ring, sharding=Sharding.contiguous(4 * ring.size, ring.size))


@pytest.mark.parallel([2, 3])
def test_a_rank_whose_loss_does_not_count_still_gives_and_gets_gradients(ring):
    shards = [torch.ones(2, 4, 8, requires_grad=True) for _ in range(3)]
    output = ring_attention(*shards, ring=ring, sharding=Sharding.contiguous(4 * ring.size, ring.size))
    (output.sum() * (ring.rank == 0)).backward()
    # Equal keys share the weight of the 4 rows of rank 0 equally, on whichever rank they are.
    parallel_assert(torch.allclose(shards[2].grad, torch.full((2, 4, 8), 1 / ring.size)))
    parallel_assert(not shards[0].grad.any())


def plain_attention(q, k, v, *, sink_logits):
    """Causal attention to the whole text with torch alone, for the same training without a ring."""
    k, v = (x.repeat_interleave(len(q) // len(x), 0) for x in (k, v))
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(torch.ones(len(q[0]), len(k[0])).triu(1).bool(), -torch.inf)
    sinks = sink_logits[:, None, None].expand(-1, len(q[0]), 1)
    return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ v


@pytest.mark.parallel([1, 2, 4])
def test_a_training_has_the_same_curve_on_any_number_of_ranks_and_without_a_ring(ring):
    curve = list(train(WORLD, length=501, steps=15))
    expected = list(train(MPI.COMM_SELF, length=501, steps=15, attend=plain_attention))
    parallel_assert(curve[-1] < 0.7 * curve[0], msg=f"it learns nothing: {curve}")
    np.testing.assert_allclose(curve, expected, rtol=CURVE_TOLERANCE, atol=0)
    parallel_assert(len({tuple(theirs) for theirs in ring.transport.exchange(curve)}) == 1)
