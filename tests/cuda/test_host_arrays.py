"""Arrays of users on a GPU go in, and come out; CuPy is emulated."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from ringmpi import Mask, attention, attention_backward, attention_map
from ringmpi.errors import ShapeError


class Array:
    """As cupy.ndarray: its numbers come by `get` alone."""

    def __init__(self, host):
        self._host, self.shape, self.dtype = np.array(host), np.shape(host), np.asarray(host).dtype

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (1, False), "version": 3}

    def get(self):
        return self._host.copy()


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
    with pytest.raises(ShapeError, match="query on a GPU, key and log_sum_exp not"):
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
