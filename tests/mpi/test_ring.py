"""The ring on real ranks: the same results, counts and bytes as promised, on any number of processes."""

import time
import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from pytest_mpi import parallel_assert

from ringmpi import Mask, Recording, Ring, Sharding, attention, attention_reference, ring_attention
from ringmpi.comm.agreement import LONG_WORK
from ringmpi.comm.mpi import MPIRing
from ringmpi.comm.protocol import Message
from ringmpi.core.scoring import Scoring
from ringmpi.errors import RingError, ShapeError
from tests.mpi.transports import Late
from tests.strategies import SCHEDULE_NAMES, masks, shardings
from tests.tolerances import assert_attention

WORLD = MPI.COMM_WORLD
RANK_COUNTS = [1, 2, 3, 4, 5, 7]
FAULT = r"rank 1 \(node .*\): .*: TypeError: made up"
MASKS = [Mask.full(), Mask.causal(), Mask.window(50, 9) | Mask.sinks(4)]


@pytest.fixture(scope="module")
def ring():
    return Ring(WORLD, timeout=30)


def qkv(query_length, key_length, dtype=np.float64, heads=(4, 2)):
    rng = np.random.default_rng(5)
    shapes = ((heads[0], query_length, 16), (heads[1], key_length, 16), (heads[1], key_length, 8))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def whole(ring, sharding, shard):
    """The output of all ranks in the caller's order, on every rank."""
    shards = ring.transport.exchange(shard)
    full = np.empty((1, shards[0].shape[0], sharding.length, *shards[0].shape[2:]), shards[0].dtype)
    for rank, part in enumerate(shards):
        sharding.put(full, part[None], rank)
    return full[0]


def judge(ring, arrays, mask, sharding, key_sharding=None, **options):
    """Run on real ranks, put together, and judge by the policy."""
    q, k, v = arrays
    keys = key_sharding or sharding
    mine = sharding.take(q, ring), keys.take(k, ring), keys.take(v, ring)
    found = ring_attention(*mine, ring=ring, sharding=sharding, key_sharding=key_sharding, mask=mask, **options)
    output, log_sum_exp = whole(ring, sharding, found.output), whole(ring, sharding, found.log_sum_exp)
    allowed = mask.allowed(q.shape[1], k.shape[1])
    parallel_assert(sum(ring.transport.exchange(found.pairs)) == allowed.sum() * q.shape[0])
    assert_attention((output[None], log_sum_exp[None]), *(x[None] for x in arrays), allowed, Scoring(0.25))
    return output


@pytest.mark.parallel(RANK_COUNTS)
@pytest.mark.parametrize("schedule", ["ring", "bidirectional", "all-gather", "broadcast"])
@pytest.mark.parametrize("name", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_real_ranks_are_exact(ring, mask, name, schedule):
    sharding = getattr(Sharding, name)(211, ring.size)
    judge(ring, qkv(211, 211), mask, sharding, schedule=schedule)


@pytest.mark.parallel(RANK_COUNTS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_every_dtype_travels(ring, dtype):
    judge(ring, qkv(131, 131, dtype), Mask.causal(), Sharding.zigzag(131, ring.size))


@pytest.mark.parallel(RANK_COUNTS)
@settings(max_examples=25, derandomize=True, database=None)
@given(data=st.data())
def test_any_problem_on_real_ranks(ring, data):
    """All ranks draw the same examples, empty shards and unequal lengths among them."""
    query_length, key_length = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 40))
    mask = data.draw(masks(query_length, key_length))
    sharding, keys = data.draw(shardings(query_length, ring.size)), data.draw(shardings(key_length, ring.size))
    judge(ring, qkv(query_length, key_length), mask, sharding, keys, schedule=data.draw(SCHEDULE_NAMES))


@pytest.mark.parallel(RANK_COUNTS)
def test_processes_compute_the_bits_of_the_simulated_ring(ring):
    arrays = qkv(698, 698, np.float32)  # 698 on 4 ranks: shards of 174 and 175
    sharding = Sharding.zigzag(698, ring.size)
    found = judge(ring, arrays, Mask.causal(), sharding)
    simulated = attention(*arrays, mask=Mask.causal(), ranks=ring.size, sharding="zigzag").output
    parallel_assert((found == simulated).all())


@pytest.mark.parallel([2, 3, 5])
def test_a_user_communicator_of_any_order_may_be_the_ring(ring):
    """Position in the ring, not launch rank, decides ownership."""
    backwards = Ring(WORLD.Split(0, key=-WORLD.rank), timeout=30)
    parallel_assert(backwards.rank == WORLD.size - 1 - WORLD.rank)
    judge(backwards, qkv(100, 100), Mask.window(20, 0), Sharding.contiguous(100, ring.size))


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("schedule", ["ring", "bidirectional", "all-gather", "broadcast"])
def test_late_messages_change_nothing(ring, schedule, monkeypatch):
    monkeypatch.setattr(ring, "transport", Late(ring.transport))
    judge(ring, qkv(131, 131), Mask.causal(), Sharding.zigzag(131, ring.size), schedule=schedule)


@pytest.mark.parallel([2, 3, 4])
def test_messages_larger_than_a_part_are_cut(ring, monkeypatch):
    """The limit of 1 GiB a message, lowered to 1,000 bytes."""
    monkeypatch.setattr(ring.transport, "part_bytes", 1000)
    judge(ring, qkv(97, 97), Mask.causal(), Sharding.zigzag(97, ring.size))


@pytest.mark.parallel([3, 4])
@pytest.mark.parametrize("nbytes", [1, 4096, 1 << 20, 1 << 24])
def test_hops_of_any_size_pass_while_all_send_first(ring, nbytes):
    transport = ring.transport
    right, left = (ring.rank + 1) % ring.size, (ring.rank - 1) % ring.size
    sent, received = np.full(nbytes, ring.rank, np.uint8), np.empty(nbytes, np.uint8)

    def loop():
        yield transport.start([Message(right, 1, sent)], [Message(left, 1, received)])

    transport.drive(loop())
    parallel_assert((received == left).all())


@pytest.mark.parallel([2, 3])
def test_bytes_on_the_wire_are_those_of_the_key_heads(ring):
    """P-1 hops of the shard: grouped heads travel once, output and queries never."""
    sent = []
    original = ring.transport.start

    class Counting(Late):
        def start(self, sends, receives):
            sent.append(sum(message.array.nbytes for message in sends))
            return original(sends, receives)

        def drive(self, loop, during=lambda: "the ring"):
            self._transport.drive(loop, during)

    transport, ring.transport = ring.transport, Counting(ring.transport)
    judge(ring, qkv(60, 60), Mask.full(), Sharding.contiguous(60, ring.size))
    ring.transport = transport
    shard = 60 // ring.size
    parallel_assert(sum(sent) == (ring.size - 1) * shard * 2 * (16 + 8) * 8)


@pytest.mark.parallel([2, 3, 5])
@pytest.mark.parametrize(
    ("odd", "error", "message"),
    [
        ({"mask": Mask.causal(1)}, RingError, "a different problem"),
        ({"scale": 0.5}, RingError, "a different problem"),
        ({"dropout": 0.5}, RingError, "a different problem"),
        ({"schedule": "bidirectional"}, RingError, "a different problem"),
        ({"schedule": "tree"}, ShapeError, r"rank 1 \(node .+\): schedule 'tree' is unknown"),
    ],
)
def test_ranks_that_disagree_all_refuse(ring, odd, error, message):
    sharding = Sharding.contiguous(40, ring.size)
    options = {"mask": Mask.causal()} | (odd if ring.rank == 1 else {})
    with pytest.raises(error, match=message) as raised:
        ring_attention(*(sharding.take(array, ring) for array in qkv(40, 40)), ring=ring, sharding=sharding, **options)
    parallel_assert(raised.value.on_all_ranks)


@pytest.mark.parallel([2, 4])
def test_a_shard_of_the_wrong_length_is_refused_on_all_ranks(ring):
    sharding = Sharding.contiguous(40, ring.size)
    arrays = [sharding.take(array, ring) for array in qkv(40, 40)]
    if ring.rank == 1:
        arrays[0] = arrays[0][:, 1:]
    with pytest.raises(ShapeError, match=r"rank 1 \(node .+\): query has"):
        ring_attention(*arrays, ring=ring, sharding=sharding)


@pytest.mark.parallel([1, 2])
def test_one_rank_warns_of_what_is_hardly_meant(ring):
    sharding = Sharding.contiguous(4, ring.size)
    arrays = [sharding.take(array, ring) for array in qkv(4, 4, heads=(100, 100))]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        ring_attention(*arrays, ring=ring, sharding=sharding)
    doubts = [(warning.filename, "axes swapped" in str(warning.message)) for warning in told]
    parallel_assert(doubts == ([(__file__, True)] if ring.rank == 0 else []))


@pytest.mark.parallel([2, 3])
def test_a_message_of_another_length_is_an_error_not_a_wrong_result(ring):
    transport = MPIRing(WORLD, WORLD.rank, timeout=30)

    def loop():
        if ring.rank == 0:
            yield transport.start([Message(1, 1, np.zeros(3))], [])
        elif ring.rank == 1:
            yield transport.start([], [Message(0, 1, np.zeros(4))])

    if ring.rank == 1:
        with pytest.raises(RingError, match="rank 0 sent 24 bytes where 32 were expected"):
            transport.drive(loop())
    else:
        transport.drive(loop())


@pytest.mark.parallel([2, 3])
def test_a_late_rank_is_named(ring):
    impatient = MPIRing(WORLD, WORLD.rank, timeout=0.3)

    def loop():
        yield impatient.start([], [Message(1, 1, np.zeros(3))])

    if ring.rank == 0:
        with pytest.raises(
            RingError, match=r"rank 1 \(node .*\) did not answer rank 0 \(node .*\) for 0.3 s \(at: ring step 2"
        ):
            impatient.drive(loop(), lambda: "ring step 2 of 3")
        with pytest.raises(RingError, match=r"rank 1.* did not answer rank 0 .* \(at: reading the input\)"):
            impatient.exchange(1, "reading the input")
    else:
        time.sleep(1.0)


@pytest.mark.parallel([3])
def test_rank_0_waits_for_long_work_of_others_too(ring):
    """Each rank writes its own file: none need be as quick as rank 0."""
    transport = MPIRing(WORLD, WORLD.rank, timeout=0.3)
    if ring.rank == 1:
        time.sleep(1.0)
    parallel_assert(transport.exchange(ring.rank, patience=LONG_WORK) == [0, 1, 2])


@pytest.mark.parallel(RANK_COUNTS)
def test_what_is_exchanged_comes_in_ring_order(ring):
    found = ring.transport.exchange({"rank": ring.rank, "padding": "x" * 1000 * ring.rank})
    parallel_assert([item["rank"] for item in found] == list(range(ring.size)))


@pytest.mark.parallel([3])
def test_the_reference_agrees_with_the_ring(ring):
    q, k, v = qkv(50, 50)
    sharding = Sharding.striped(50, ring.size)
    found = judge(ring, [q, k, v], Mask.causal(), sharding)
    parallel_assert(np.allclose(found, attention_reference(q, k, v, mask=Mask.causal()).output.astype(float)))


@pytest.mark.parallel(RANK_COUNTS)
def test_whole_numbers_of_numpy_on_one_rank_are_those_of_the_others(ring):
    q, k, v = qkv(150, 150)
    whole = np.uint8 if ring.rank == ring.size - 1 else int
    sharding = Sharding.zigzag(150, whole(ring.size), block=whole(100))
    mask = Mask.window(whole(40), whole(5)) | Mask.sinks(whole(4))
    judge(ring, [q, k, v], mask, sharding, record=Recording(whole(3)))


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("function", ["core.masking.Mask.fingerprint", "passes.finite.all_finite"])
def test_a_fault_on_one_rank_is_raised_on_all_at_once(ring, monkeypatch, function):
    """Also where ranks compare or share what they have computed; the next call is none the worse for it."""

    def fail(*_):
        raise TypeError("made up")

    q, k, v = qkv(40, 40)
    sharding = Sharding.zigzag(40, ring.size)
    with monkeypatch.context() as patch:
        if ring.rank == 1:
            patch.setattr(f"ringmpi.{function}", fail)
        began = time.monotonic()
        error, says = (TypeError, "made up") if ring.rank == 1 else (RingError, FAULT)
        with pytest.raises(error, match=says):
            ring_attention(*(sharding.take(x, ring) for x in (q, k, v)), ring=ring, sharding=sharding)
        parallel_assert(time.monotonic() - began < 10)
    judge(ring, [q, k, v], Mask.full(), sharding)
