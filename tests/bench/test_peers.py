"""Peers answer the questions as ringmpi does, forward and backward: so what is timed is the same computation."""

from importlib import import_module

import numpy as np
import pytest

from ringmpi.bench.peers import MODULES, AbsentError, UnsupportedError
from ringmpi.bench.questions import Case
from ringmpi.bench.ring_report import problem_of
from ringmpi.core.reference import dense_attention
from ringmpi.core.tolerance import finite_scale
from tests.tolerances import assert_gradients, assert_within

LIBRARIES = {"naive": (), "torch": ("torch",), "jax": ("jax",), "onnxruntime": ("onnxruntime", "onnx")}

FORWARD_ONLY = ("naive", "onnxruntime")


def answer(contender, case):
    for library in LIBRARIES[contender]:
        pytest.importorskip(library, reason=f"{library} is not installed here: pip install 'ringmpi[bench]'")
    module = import_module(f"ringmpi.bench.peers.{MODULES[contender]}")
    prepared = module.prepare(contender, case.question(), backward=case.backward, threads=1)
    return prepared.read(prepared.run())


@pytest.mark.parametrize("contender", LIBRARIES)
@pytest.mark.parametrize("mask", ["full", "causal", "window:5", "documents:3"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_peers_compute_what_ringmpi_computes(contender, mask, backward):
    case = Case(4, 2, 33, 16, mask, backward=backward)
    question, scoring = case.question(), problem_of(case, 1, "contiguous").scoring
    q, k, v, upstream = (array[None] for array in (question.q, question.k, question.v, question.grad_output))
    if backward and contender in FORWARD_ONLY:
        with pytest.raises(UnsupportedError, match="no backward pass"):
            answer(contender, case)
        return
    found = [array[None] for array in answer(contender, case)]
    if backward:
        assert_gradients((*found, None, None), upstream, q, k, v, question.allowed(), scoring)
        return
    naive, reference = (
        dense_attention(q, k, v, question.allowed(), scoring, dtype=dtype)[0] for dtype in (np.float32, np.float64)
    )
    assert_within(found[0], naive, reference, finite_scale(v))


def test_torch_on_a_gpu_is_absent_where_it_sees_none():
    torch = pytest.importorskip("torch", reason="torch is not installed here: pip install 'ringmpi[bench]'")
    if torch.cuda.is_available():
        pytest.skip("it sees one")
    with pytest.raises(AbsentError, match="this PyTorch sees no GPU"):
        import_module("ringmpi.bench.peers.torch_sdpa").prepare(
            "torch-cuda", Case(1, 1, 1, 1).question(), backward=False, threads=1
        )


def test_scores_that_do_not_fit_are_refused_and_not_tried():
    with pytest.raises(UnsupportedError, match=r"needs 4\.0 GiB"):
        answer("naive", Case(1, 1, 1 << 15, 1))


def test_numpys_ceilings_do_some_work():
    prepare = import_module("ringmpi.bench.peers.ceilings").prepare
    for name in ("sgemm", "exp"):
        prepared = prepare(name, None, backward=False, threads=1)
        prepared.run()
        assert prepared.amount > 1e6


def test_the_exponentials_of_the_native_library_are_powers_of_two():
    from ringmpi.backends.native.ceilings import exp2, fused_multiply_adds
    from ringmpi.errors import BackendError

    x = np.zeros(64 + 16, np.float32)
    start = -x.ctypes.data % 64 // 4
    x = x[start : start + 64]
    x[:] = np.arange(-64, 0)
    try:
        exp2(x, x, 1)
    except BackendError as reason:
        pytest.skip(f"the native library is not here: {reason}")
    assert (x == 2.0 ** np.arange(-64, 0)).all()
    assert fused_multiply_adds() > 1e6
