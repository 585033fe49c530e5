"""Arrays of users on a GPU go in, and come out; CuPy is emulated."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

import ringmpi.backends
from ringmpi import (
    Mask,
    Sharding,
    attention,
    attention_backward,
    attention_map,
    ring_attention,
    ring_attention_backward,
    ring_attention_map,
)
from ringmpi.environment.device_messages import SETTING
from ringmpi.errors import ShapeError
from ringmpi.ring import Ring
from tests.cuda.emulated import EmulatedDevice
from tests.cuda.numpy_runner import NumpyRunner


class Array:
    """As cupy.ndarray where no kernel can be compiled: its numbers come by `get` alone, and only if they are dense."""

    def __init__(self, host):
        self._host = np.asarray(host)
        self.shape, self.dtype, self.ndim, self.strides = host.shape, host.dtype, host.ndim, host.strides
        self.flags = self._host.flags

    def transpose(self, axes):
        return Array(self._host.transpose(axes))

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (1, False), "version": 3}

    def get(self):
        if not self._host.flags.c_contiguous:
            raise CompileError("cannot open source file vector_types.h")
        return self._host.copy()


class CompileError(Exception):
    """As cupy.cuda.compiler.CompileException: of no kind that Python has."""


class Tensor:
    """Of another library that shares its memory by DLPack."""

    def __init__(self, host, kind=2):
        self.host, self.kind = host, kind

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, **options):
        raise NotImplementedError


@pytest.fixture
def cupy(monkeypatch):
    module = SimpleNamespace(ndarray=Array, asarray=Array, from_dlpack=lambda tensor: Array(tensor.host))
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def arrays():
    rng = np.random.default_rng(1)
    return [rng.standard_normal((2, 12, 8)).astype(np.float32) for _ in range(4)]


def both(given):
    out = attention(*given[1:], mask=Mask.causal(), backend="numpy")
    return out, attention_backward(*given, out, mask=Mask.causal(), backend="numpy")


def test_arrays_on_a_gpu_give_arrays_on_a_gpu(cupy):
    out, gradients = both([Array(array) for array in arrays()])
    expected, expected_gradients = both(arrays())
    pairs = [(out.output, expected.output), (out.log_sum_exp, expected.log_sum_exp)]
    for found, right in (*pairs, *zip(gradients, expected_gradients, strict=True)):
        assert isinstance(found, Array)
        np.testing.assert_array_equal(found.get(), right)
    assert out.pairs == expected.pairs


@pytest.mark.parametrize("axes", [(1, 0, 2), (2, 1, 0), (0, 2, 1)])
def test_arrays_that_are_only_turned_take_no_kernel(cupy, axes):
    """[length, heads, dim], as layers of networks have them: CuPy would compile one to put them in order."""
    back = np.argsort(axes)
    turned = [Array(np.ascontiguousarray(array.transpose(axes)).transpose(back)) for array in arrays()]
    assert not turned[0].flags.c_contiguous
    out, gradients = both(turned)
    expected, expected_gradients = both(arrays())
    np.testing.assert_array_equal(out.output.get(), expected.output)
    for found, right in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_array_equal(found.get(), right)


def test_arrays_with_gaps_are_told_what_to_do(cupy):
    q, k, v = arrays()[1:]
    with pytest.raises(ShapeError, match="query .*CompileError: cannot open source file .* Make it contiguous"):
        attention(Array(q[:, ::2]), Array(k), Array(v), backend="numpy")


@pytest.fixture
def device(cupy, monkeypatch):
    """What `backend="cuda"` computes on; a result that goes up to it finds all of it free."""
    emulated = EmulatedDevice(runner=NumpyRunner())
    monkeypatch.setattr("tests.cuda.emulated.device", lambda: emulated)
    monkeypatch.setitem(ringmpi.backends._OPENERS, "cuda", ("tests.cuda.emulated", "emulated"))

    def asarray(host):
        assert emulated.cupy.allocations, "a GPU has computed it"
        assert emulated.cupy.free == emulated.cupy.nbytes
        return Array(host)

    cupy.asarray = asarray
    return emulated


def test_results_find_room_on_a_gpu_that_has_computed_them(device):
    """The card may be full but for what the call needs, and CuPy takes nothing from the pool of another."""
    grad_output, q, k, v = (Array(array) for array in arrays())
    options = {"mask": Mask.causal(), "ranks": 2, "backend": "cuda"}
    out = attention(q, k, v, **options)
    gradients = attention_backward(grad_output, q, k, v, out, **options)
    found = attention_map(q, k, out.log_sum_exp, block=5, **options)
    assert all(isinstance(array, Array) for array in (out.output, *gradients, found.map))


def test_results_of_a_ring_find_room_too(device, monkeypatch):
    monkeypatch.setenv(SETTING, "staged")
    grad_output, q, k, v = (Array(array) for array in arrays())
    with Ring(MPI.COMM_SELF) as ring:
        options = {"ring": ring, "sharding": Sharding.contiguous(12, 1), "mask": Mask.causal(), "backend": "cuda"}
        out = ring_attention(q, k, v, **options)
        gradients = ring_attention_backward(grad_output, q, k, v, out, **options)
        found = ring_attention_map(q, k, out.log_sum_exp, block=5, **options)
    assert all(isinstance(array, Array) for array in (out.output, *gradients, found.map))


def test_a_map_of_arrays_on_a_gpu_is_on_a_gpu(cupy):
    """And takes the log_sum_exp that a forward pass has left there."""
    q, k, _ = arrays()[1:]
    found, expected = (
        attention_map(a, b, attention(a, b, b, backend="numpy").log_sum_exp, block=5, backend="numpy")
        for a, b in ((Array(q), Array(k)), (q, k))
    )
    assert isinstance(found.map, Array)
    np.testing.assert_array_equal(found.map.get(), expected.map)
    np.testing.assert_array_equal(found.received.get(), expected.received)
    with pytest.raises(ShapeError, match="query on a GPU, key, log_sum_exp on the host"):
        attention_map(Array(q), k, np.zeros((2, 12), np.float32), block=5, backend="numpy")


def test_arrays_of_other_libraries_come_by_dlpack(cupy):
    out = attention(*map(Tensor, arrays()[1:]), mask=Mask.causal(), backend="numpy")
    assert isinstance(out.output, Array)
    np.testing.assert_array_equal(out.output.get(), both(arrays())[0].output)


def test_arrays_of_one_call_lie_in_one_memory(cupy):
    q, k, v = arrays()[1:]
    with pytest.raises(
        ShapeError, match="key on a GPU, query, value on the host; all arrays of a call must be in the same memory"
    ):
        attention(q, Array(k), v, backend="numpy")


def test_without_cupy_they_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ShapeError, match=r"query is on a GPU; reading it needs CuPy, .*\.\[cuda13\].*Or give a NumPy"):
        attention(*map(Array, arrays()[1:]), backend="numpy")


def test_what_cupy_cannot_read_is_said(cupy):
    """Class 43: older versions know no bfloat16."""

    def refuse(tensor):
        raise BufferError("bfloat16 is not supported")

    cupy.from_dlpack = refuse
    with pytest.raises(ShapeError, match="query is on a GPU, and CuPy cannot read it .BufferError: bfloat16"):
        attention(*map(Tensor, arrays()[1:]), backend="numpy")


class Learning(Tensor):
    """As torch.Tensor with requires_grad on a GPU."""

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad.")


def test_a_tensor_that_requires_gradients_is_told_what_to_do(cupy):
    def refuse(tensor):
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")

    cupy.from_dlpack = refuse
    with pytest.raises(ShapeError, match=r"query is on a GPU, and CuPy cannot read it .*use tensor.detach"):
        attention(*map(Learning, arrays()[1:]), backend="numpy")


def test_memory_that_gpu_and_host_share_is_on_a_gpu(cupy):
    out = attention(*(Tensor(array, kind=13) for array in arrays()[1:]), mask=Mask.causal(), backend="numpy")
    np.testing.assert_array_equal(out.output.get(), both(arrays())[0].output)


def test_what_is_no_array_is_refused_as_before():
    with pytest.raises(ShapeError, match="query is a list; this version takes NumPy arrays, and arrays on a GPU"):
        attention([1.0], *arrays()[2:], backend="numpy")
    with pytest.raises(ShapeError, match="query is a Tensor"):
        attention(Tensor(None, kind=1), *arrays()[2:], backend="numpy")
