"""The host side of the CUDA backend on an emulated CuPy; NumPy stands for its kernels: no compiler is needed."""

import bisect
import mmap
from itertools import product

import ml_dtypes
import numpy as np
import pytest

import ringmpi.backends
from docs.cuda_paper import GPUS, forward_tile, permitted
from ringmpi import Mask, attention, attention_backward, attention_map
from ringmpi.backends import get_backend
from ringmpi.backends.cuda.attend import CudaBackend
from ringmpi.backends.cuda.call import Inputs
from ringmpi.backends.cuda.cupy_device import CupyDevice
from ringmpi.backends.cuda.device_array import DeviceArray
from ringmpi.backends.cuda.instances import forward_instance
from ringmpi.backends.cuda.memory import DeviceMemory
from ringmpi.comm.local import LocalRing
from ringmpi.core.gradients import Gradients, Saved
from ringmpi.core.scoring import Scoring
from ringmpi.core.shapes import HeadShape, with_batch
from ringmpi.errors import BackendError, ExactnessError, RingMpiError
from tests.cuda.emulated import EmulatedDevice, emulated
from tests.cuda.emulated_cupy import (
    ILLEGAL_ADDRESS,
    MEMORY_ALLOCATION,
    CUDADriverError,
    CUDARuntimeError,
    EmulatedCupy,
)
from tests.cuda.numpy_runner import NumpyRunner, dense
from tests.tolerances import assert_attention, assert_gradients, assert_map

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
WAYS = [
    ("ring", "keys"),
    ("ring", "queries"),
    ("bidirectional", "keys"),
    ("all-gather", "queries"),
    ("broadcast", "auto"),
]
LENGTH, RANKS = 40, 3
NORESERVE = 0x4000  # of mmap on Linux: its pages are not counted before they are touched
MASK = Mask.window(9, 3) | Mask.sinks(2)
SLOPES, SINKS = np.array([0.5, 0.25]), np.array([0.1, -0.2])


@pytest.fixture
def device(monkeypatch):
    """What `backend="cuda"` computes on."""
    emulated = EmulatedDevice(runner=NumpyRunner())
    monkeypatch.setattr("tests.cuda.emulated.device", lambda: emulated)
    monkeypatch.setitem(ringmpi.backends._OPENERS, "cuda", ("tests.cuda.emulated", "emulated"))
    return emulated


def arrays(dtype, dims=(11, 13)):
    """grad_output, q, k, v; rows of 11 or 13 numbers do not fill 16 bytes."""
    rng = np.random.default_rng(3)
    shapes = (2, LENGTH, dims[1]), (2, LENGTH, dims[0]), (1, LENGTH, dims[0]), (1, LENGTH, dims[1])
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def both(given, schedule="ring", travel="auto", **options):
    """A forward and a backward pass on a ring of devices."""
    options |= {"mask": MASK, "ranks": RANKS, "schedule": schedule, "backend": "cuda"}
    out = attention(*given[1:], **options)
    return out, attention_backward(*given, out, travel=travel, **options)


def judge(out, gradients, given, **scores):
    """By the wide formula, and the pairs."""
    grad_output, q, k, v = map(with_batch, given)
    scoring = Scoring(q.shape[-1] ** -0.5, scores.get("softcap"), scores.get("alibi_slopes"))
    allowed, sinks = MASK.allowed(LENGTH, LENGTH), {"sink_logits": scores.get("sink_logits")}
    assert out.pairs == gradients.pairs == 2 * allowed.sum()
    assert_attention((out.output[None], out.log_sum_exp[None]), q, k, v, allowed, scoring, **sinks)
    found = (*(array[None] for array in gradients), gradients.sink_logits, gradients.alibi_slopes)
    assert_gradients(found, grad_output, q, k, v, allowed, scoring, **sinks)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("schedule", "travel"), WAYS)
def test_rings_of_devices_are_exact(device, dtype, schedule, travel):
    given, scores = arrays(dtype), {"softcap": 5.0, "alibi_slopes": SLOPES, "sink_logits": SINKS}
    judge(*both(given, schedule, travel, **scores), given, **scores)
    assert device.cupy.freed_early == 0, "memory was free for others while work on it was still to be done"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dims", "scores"), [((11, 13), {}), ((70, 8), {"softcap": 5.0, "alibi_slopes": SLOPES})])
def test_an_attention_map_is_exact(device, dtype, dims, scores):
    """Gradients of values alone, of kernels that give them by themselves and of those that give two."""
    _, q, k, v = arrays(dtype, dims)
    out = attention(q, k, v, mask=MASK, backend="cuda", **scores)
    launched = len(device.cupy.runner.launches)
    found = attention_map(q, k, out.log_sum_exp, block=7, mask=MASK, ranks=RANKS, backend="cuda", **scores)
    allowed = MASK.allowed(LENGTH, LENGTH)
    assert found.pairs == 2 * allowed.sum()
    assert_map(
        (found.map[None], found.received[None]),
        q[None],
        k[None],
        allowed,
        Scoring(dims[0] ** -0.5, scores.get("softcap"), scores.get("alibi_slopes")),
        7,
    )
    assert device.cupy.used == 0
    assert all(label.startswith("gradient") for label in device.cupy.runner.launches[launched:])


@pytest.mark.parametrize("asked", list(product((False, True), repeat=3)), ids=str)
def test_only_what_is_wanted_is_launched(device, asked):
    """Any gradients without the others: a launch each, or one for those of keys and of values."""
    grad_output, q, k, v = map(with_batch, arrays(np.float32))
    work = np.array([[0, LENGTH, 0, LENGTH, 0, 1, 0, 1, 1 - LENGTH, LENGTH - 1]])
    saved = Saved(grad_output, *(np.ones((1, 2, LENGTH), np.float32) for _ in range(2)))
    sums = [
        np.zeros(array.shape, np.float32) if wanted else None for array, wanted in zip((q, k, v), asked, strict=True)
    ]
    whole = Gradients(*(np.zeros(array.shape, np.float32) for array in (q, k, v)), np.zeros(2))
    for into in (whole, Gradients(*sums, np.zeros(2))):
        before = len(device.cupy.runner.launches)
        pairs = CudaBackend(device).attend_backward(q, k, v, saved, work, Scoring(0.2), into=into)
    assert pairs == (2 * LENGTH**2 if any(asked) else 0)
    assert len(device.cupy.runner.launches) - before == asked[0] + (asked[1] or asked[2])
    for found, expected in zip(sums, (whole.query, whole.key, whole.value), strict=True):
        assert found is None or found.any()
        assert found is None or found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("schedule", "travel"), WAYS)
def test_copies_that_end_at_any_time_change_nothing(device, schedule, travel, seed):
    """Messages of one tag leave and arrive in their order, and no rank waits for one that its peer keeps back."""
    chance, given = np.random.default_rng(seed), arrays(np.float32)
    device.cupy.willing = lambda: chance.random() < 0.3
    judge(*both(given, schedule, travel), given)
    assert device.cupy.freed_early == 0


def test_nothing_stays_on_the_device(device):
    """Class 57: what a pass has asked for is free after it, and the next one asks for as much."""
    given = arrays(np.float32)
    needed = []
    for _ in range(3):
        before = device.cupy.allocations, device.cupy.pinned
        both(given)
        needed.append((device.cupy.allocations - before[0], device.cupy.pinned - before[1]))
        assert device.cupy.used == device.cupy.kept == 0
    assert len(set(needed)) == 1


@pytest.mark.parametrize("memory_first", [True, False])
def test_memory_goes_back_with_the_last_who_has_some(device, memory_first):
    """A run keeps what it has had; after a call other libraries can have it, whatever Python lets go of first."""
    memory = DeviceMemory(device)
    array = memory.put(np.ones(1000))
    memory.put(np.ones(500))
    assert (device.cupy.used, device.cupy.kept) == (8000, 4000), "what is free is used again"
    if memory_first:
        del memory
        assert device.cupy.used == 8000
        del array
    else:
        del array
        assert device.cupy.kept == 12000
        del memory
    assert device.cupy.used == device.cupy.kept == 0


def test_a_broken_device_is_not_asked_to_take_memory_back(device):
    """That would raise where nobody can catch it, and hide the error that broke it."""
    memory = DeviceMemory(device)
    memory.put(np.ones(1000))
    device.cupy.status = ILLEGAL_ADDRESS
    device.trim()
    assert device.cupy.kept == 8000


def test_slots_and_buffers_of_messages_are_asked_for_once_a_pass(device):
    """Class 57: whatever the number of hops, memory that messages leave from is the same."""
    rng = np.random.default_rng(0)
    pinned = []
    for ranks in (4, 8):
        q = rng.standard_normal((1, 16 * ranks, 8)).astype(np.float32)
        before = device.cupy.pinned
        attention(q, q, q, ranks=ranks, backend="cuda", sharding="contiguous")
        pinned.append((device.cupy.pinned - before) / ranks)
    assert pinned[0] == pinned[1], "bytes per rank"


def keep(monkeypatch, method):
    """What is given to a method of the device stays alive, so that late copies of it crash nothing."""
    whole, kept = getattr(CupyDevice, method), []

    def keeping(self, *arguments, **options):
        kept.append(arguments)
        return whole(self, *arguments, **options)

    monkeypatch.setattr(CupyDevice, method, keeping)


FORGOTTEN = {
    "arrays are there when they are put there": ("ringmpi.backends.cuda.cupy_device._Mark.wait", lambda self: None),
    "messages leave when they have come down": ("ringmpi.comm.device_ring._all_done", lambda copies: True),
    "copies wait for kernels": ("tests.cuda.emulated_cupy.Stream.wait_event", lambda self, event: None),
}


@pytest.mark.parametrize("forgotten", FORGOTTEN)
def test_a_wait_that_is_forgotten_is_seen(device, monkeypatch, forgotten):
    """Classes 52-54: the device does its work late, so what did not wait for it reads NaN or what was there before."""
    given = arrays(np.float32)
    judge(*both(given, travel="queries"), given)
    keep(monkeypatch, "upload")
    keep(monkeypatch, "download")
    monkeypatch.setattr(*FORGOTTEN[forgotten])
    with pytest.raises((AssertionError, RingMpiError, ValueError, FloatingPointError)):
        judge(*both(given, travel="queries"), given)


class Impatient:
    """A ring that sends as soon as it is asked to: what MPI sees then is there for good."""

    takes_device_memory = True

    def __init__(self):
        self.rank, self.size, self.sent = 0, 2, []

    def start(self, sends, receives):
        self.sent += [message.array for message in sends]


def test_a_buffer_is_complete_before_mpi_sees_it(device, monkeypatch):
    """Class 52; and with the wait taken out the same look finds it incomplete."""
    from ringmpi.comm.device_ring import reaching
    from ringmpi.comm.protocol import Message

    def seen():
        memory, comm = DeviceMemory(device), Impatient()
        array = memory.put(np.ones((1, 1, 4, 4), np.float32))
        memory.add(array, array)
        reaching(memory.ferry, comm).start([Message(1, 1, array)], [])
        (sent,) = comm.sent
        interface = sent.__cuda_array_interface__
        assert interface["shape"] == (64,)
        return dense(interface["data"][0], (16,), np.dtype(np.float32)).copy()

    np.testing.assert_array_equal(seen(), 2)
    monkeypatch.setattr(CupyDevice, "wait", lambda self: None)
    np.testing.assert_array_equal(seen(), 1)


def test_bytes_for_mpi_are_sliced_where_they_lie(device):
    memory = DeviceMemory(device)
    array = memory.put(np.arange(6, dtype=np.uint8))
    whole = memory.ferry.as_bytes(array)
    part = whole[2:5]
    assert (len(whole), len(part)) == (6, 3)
    assert part.__cuda_array_interface__["data"][0] == array.ptr + 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_gives_back_what_was_put_there(device, dtype):
    """Class 43: bfloat16 is bits there, so no library has to know it."""
    memory, host = DeviceMemory(device), arrays(dtype)[1][None]
    for aligned in (False, True):
        there = memory.put(host[:, :, ::2], aligned=aligned)
        assert there.strides[-1] % (16 if aligned else host.dtype.itemsize * 11) == 0
        assert there.nbytes == memory.nbytes(there.shape, there.dtype, aligned=aligned)
        assert memory.get(there).tobytes() == host[:, :, ::2].tobytes()
        smaller = memory.shaped(there, (1, 1, 3, 11))
        assert (smaller.ptr, smaller.nbytes) == (there.ptr, 3 * there.strides[-1])
        memory.clear(there)
        assert not memory.get(there).astype(np.float64).any()


def test_a_device_that_is_full_says_what_was_needed():
    small = EmulatedDevice(runner=NumpyRunner(), nbytes=1 << 20)
    message = r"GPU emulated \(sm_80, GPU-.*\) has 1.0 of 1.0 MiB free, and one more array needs 4.0 MiB \(Out of"
    with pytest.raises(BackendError, match=rf"{message} memory allocating 4194304 bytes\). Use more ranks"):
        DeviceMemory(small).empty((1 << 20,), np.dtype(np.float32))
    assert DeviceMemory(small).empty((1 << 10,), np.dtype(np.float32)).nbytes == 4096


def test_what_cupy_keeps_for_nobody_is_no_full_device():
    """The application has used CuPy before, and what it has let go of CuPy's own pool keeps."""
    small = EmulatedDevice(runner=NumpyRunner(), nbytes=1 << 20)
    small.cupy.default_pool.malloc(1 << 20)
    assert small.cupy.free == 0
    assert DeviceMemory(small).empty((1 << 10,), np.dtype(np.float32)).nbytes == 4096


@pytest.mark.parametrize("error", [CUDARuntimeError, CUDADriverError])
def test_a_full_device_is_no_error_of_a_kernel(device, error):
    """Machine code takes memory too, and the driver says so in its own way."""

    def full(**module):
        raise error(MEMORY_ALLOCATION)

    device.cupy.RawModule = full
    memory, array = DeviceMemory(device), np.ones((1, 1, 8, 8), np.float32)
    there = memory.put(array)
    with pytest.raises(
        BackendError, match=r"MiB free, and that is not enough to run add-float32 .*Use more ranks"
    ) as found:
        memory.add(there, there)
    assert "please report" not in str(found.value)


def test_pinned_memory_has_few_sizes(device):
    """CuPy's pool gives it again to who asks for the same size only."""
    for nbytes in (0, 1, 1000, 1024, 1025):
        before = device.cupy.pinned
        assert device.pinned(nbytes).nbytes == nbytes
        assert device.cupy.pinned - before == {0: 1, 1: 1, 1000: 1024, 1024: 1024, 1025: 2048}[nbytes]


def test_host_memory_that_cannot_be_pinned_is_no_error_of_a_kernel(device):
    def full(nbytes):
        raise CUDARuntimeError(MEMORY_ALLOCATION)

    device.cupy.cuda.alloc_pinned_memory = full
    with pytest.raises(BackendError, match=r"cannot pin 2.0 MiB more .*ulimit -l.*--mem") as found:
        device.pinned(2 << 20)
    assert "kernel" not in str(found.value)


def test_an_error_of_the_device_names_it(device):
    memory, q = DeviceMemory(device), np.ones((1, 1, 8, 8), np.float32)
    device.cupy.status = ILLEGAL_ADDRESS
    with pytest.raises(BackendError, match=r"emulated .*GPU-.* cannot copy: cudaErrorIllegalAddress.*please report"):
        memory.put(q)


def test_nobody_waits_for_ever_for_a_kernel_that_failed(device):
    """CuPy's Event.done stays False then, so the status of the event is to be looked at."""
    q, work = np.ones((1, 1, 8, 8), np.float32), np.array([[0, 8, 0, 8, 0, 1, 0, 1, -99, 99]])
    device.cupy.runner = lambda *told: setattr(device.cupy, "status", ILLEGAL_ADDRESS)
    with pytest.raises(
        BackendError, match=r"GPU-.* cannot wait for its kernels: cudaErrorIllegalAddress.*please report"
    ):
        CudaBackend(device).attend(q, q, q, work, Scoring(1.0))


def test_launches_that_do_not_agree_give_no_gradients(device):
    """Each counts the pairs; the count of the last one alone would hide what an earlier one has lost."""
    grad_output, q, k, v = map(with_batch, arrays(np.float32))
    work = np.array([[0, LENGTH, 0, LENGTH, 0, 1, 0, 1, 1 - LENGTH, LENGTH - 1]])
    saved = Saved(grad_output, *(np.ones((1, 2, LENGTH), np.float32) for _ in range(2)))
    into, whole = (
        Gradients(*(np.zeros(array.shape, np.float32) for array in (q, k, v)), np.zeros(2)),
        device.cupy.runner,
    )

    def losing(kernel, size, argument, bounds):
        whole(kernel, size, argument, bounds)
        if not argument["by_key"]:
            dense(argument["problem"]["attended"], (1,), np.dtype(np.int64))[0] -= 1

    device.cupy.runner = losing
    with pytest.raises(ExactnessError, match=r"gradient-float32-32 attended to different pairs: 3,199 .query., 3,200"):
        CudaBackend(device).attend_backward(q, k, v, saved, work, Scoring(0.2), into=into)


def test_a_gpu_with_less_shared_memory_refuses_what_needs_more():
    """Compute capability 8.6, 8.9, 12.x: 99 KiB a block, where A100 have 163."""
    cupy = EmulatedCupy(NumpyRunner(), capabilities=["89"], shared_bytes=99 << 10)
    backend = CudaBackend(CupyDevice(cupy, 0, cupy.compiled))
    work = np.array([[0, 8, 0, 8, 0, 1, 0, 1, -99, 99]])

    def attend(dim):
        q = np.ones((1, 1, 8, dim))
        return backend.attend(q, q, q, work, Scoring(1.0))[1]

    assert attend(192) == 64
    with pytest.raises(
        BackendError, match=r"output-float64-256 needs 131,392 bytes .*sm_89.* 101,376.*backend .native"
    ):
        attend(256)


@pytest.mark.parametrize("looks", [3, 300])
def test_nobody_sleeps_longer_than_a_short_kernel_runs(device, monkeypatch, looks):
    naps, left = [], iter(range(10**6))
    monkeypatch.setattr("ringmpi.backends.cuda.call.time.sleep", naps.append)
    q, work = np.ones((1, 1, 8, 8), np.float32), np.array([[0, 8, 0, 8, 0, 1, 0, 1, -99, 99]])
    backend, wait = CudaBackend(device), Inputs._wait

    def waiting(self, poll):
        device.cupy.willing = lambda: next(left) > looks
        wait(self, poll)

    monkeypatch.setattr(Inputs, "_wait", waiting)
    backend.attend(q, q, q, work, Scoring(1.0))
    assert len(naps) == pytest.approx(max(looks - 100, 0), abs=10)


def test_a_kernel_that_is_interrupted_ends_before_its_arrays_go(device):
    """Ctrl-C in a poll: what the kernel has pointers to must not be free for others while it runs."""

    def interrupt():
        raise KeyboardInterrupt

    q = np.ones((1, 1, 8, 8), np.float32)
    work = np.array([[0, 8, 0, 8, 0, 1, 0, 1, -99, 99]])
    with pytest.raises(KeyboardInterrupt):
        CudaBackend(device).attend(q, q, q, work, Scoring(1.0), poll=interrupt)
    assert device.cupy.freed_early == 0
    assert not any(stream.waiting for stream in device.cupy.streams)


def test_a_ring_of_devices_that_waits_for_nobody_is_not_taken_for_stuck(device):
    """While one copies, no rank moves; the driver of simulated ranks must not call that a deadlock."""
    assert LocalRing(2).ranks[0].takes_device_memory is False
    given = arrays(np.float32)
    judge(*both(given, "bidirectional", "queries"), given)


def test_the_backend_says_what_it_is(device):
    backend = get_backend("cuda", local_rank=1)
    assert (backend.name, backend.arithmetic, backend.reproducible, backend.records) == ("cuda", "sm_80", True, False)
    assert backend.memory.layout != get_backend("numpy").memory.layout


class Far:
    """Memory of a device so long that rows of it are far apart; only what is touched is really there."""

    def __init__(self, device, nbytes):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
        self._own = np.frombuffer(mmap.mmap(-1, nbytes, flags=flags), np.uint8)
        self.ptr = self._own.ctypes.data
        bisect.insort(device.cupy.bounds, (self.ptr, self.ptr + nbytes))


def far_apart(device, host, row_bytes):
    """An array there, each row `row_bytes` behind the one before."""
    there = DeviceArray(Far(device, host.size // host.shape[-1] * row_bytes), host.shape, host.dtype, row_bytes)
    for index, row in enumerate(host.reshape(-1, host.shape[-1])):
        dense(there.ptr + index * row_bytes, row.shape, row.dtype)[:] = row
    return there


def test_offsets_have_64_bits():
    """Class 41: arrays of more than 2^31 bytes and elements; here heads lie 10 GiB apart."""
    backend, rng, dim = emulated(), np.random.default_rng(0), 64
    q, k, v = (rng.standard_normal((1, 2, 40, dim)).astype(np.float16) for _ in range(3))
    work = np.array([[0, 40, 0, 40, 0, 1, 0, 1, -99, 0]])
    near, pairs = backend.attend(q, k, v, work, Scoring(0.1))
    far = [far_apart(backend.device, array, 1 << 28) for array in (q, k, v)]
    assert far[0].strides[1] == 40 << 28 > 1 << 33
    found, same_pairs = backend.attend(*far, work, Scoring(0.1))
    assert (pairs, same_pairs) == (2 * 820, 2 * 820)
    for array in ("row_max", "row_sum", "weighted_sum"):
        np.testing.assert_array_equal(getattr(found, array), getattr(near, array))


@pytest.mark.parametrize("dtype", [np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32), np.dtype(np.float64)], ids=str)
def test_a_call_takes_on_paper_what_a_call_is_to_take(dtype):
    """Of an A100, forward: the smaller and the larger figure of docs/cuda-kernels.md. Backward takes twice that."""
    heads = HeadShape(1, 8, 8, 128, 128)
    flops = CudaBackend(EmulatedDevice(runner=NumpyRunner())).call_budget(heads, dtype) * 2 * 8 * (128 + 128)
    of = forward_instance(dtype, heads, extras=True, rounded=False)
    most, least, _ = permitted(of, forward_tile(of), GPUS[0], 1)
    assert flops / 1e12 / most == pytest.approx(0.3, rel=0.4)
    assert flops / 1e12 / least == pytest.approx(0.3, rel=0.4)
