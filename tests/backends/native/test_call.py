"""What a call of a native kernel leaves behind, and how it ends early."""

import gc
import signal
import threading
import time
import weakref

import numpy as np
import pytest

import ringmpi
from ringmpi.backends import get_backend
from ringmpi.core.scoring import Scoring
from ringmpi.core.work import meet
from ringmpi.errors import BackendError
from tests.backends.natives import ISAS

pytestmark = pytest.mark.skipif(not ISAS, reason="the native kernels are not built here: no C++ compiler at install")


def arrays(length=64):
    return [np.random.default_rng(n).standard_normal((4, length, 64), np.float32) for n in range(3)]


def forward(q, k, v):
    return ringmpi.attention(q, k, v, backend="native")


def without_end(q, k, v, out, backward):
    """Calls of the kernel, one after the other, from 50 ms before a Ctrl-C."""
    threading.Timer(0.05, signal.raise_signal, [signal.SIGINT]).start()
    while backward:
        ringmpi.attention_backward(out.output, q, k, v, out, backend="native")
    while True:
        forward(q, k, v)


@pytest.fixture
def heard():
    """Ctrl-C raises, also in a process that was started to ignore it, as workers of tests are."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("backward", [False, True])
def test_ctrl_c_ends_it_at_once_and_leaves_python_well(backward):
    """Wherever the signal meets the kernel: also on the way into Python, where ctypes would drop it."""
    q, k, v = arrays(4096)
    out = forward(q, k, v)
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            without_end(q, k, v, out, backward)
    assert forward(*arrays()).pairs == 4 * 64 * 64


def test_no_array_outlives_its_call():
    """Large inputs are gone with their last name, not when the garbage collector comes round."""
    q, k, v = arrays()
    left = weakref.ref(v)
    gc.disable()
    try:
        forward(q, k, v)
        del q, k, v
        assert left() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("threads", [0, -1, 10**20])
@pytest.mark.parametrize("name", ["native", "numpy"])
def test_a_number_of_threads_that_cannot_be_is_refused(name, threads):
    with pytest.raises(BackendError, match="expected 1 to 4096. Set OMP_NUM_THREADS"):
        get_backend(name, threads=threads)


def test_the_poll_is_called_no_more_once_it_has_raised():
    calls = []

    def poll():
        calls.append(time.monotonic())
        raise ZeroDivisionError("of the poll")

    q, k, v = (array[None] for array in arrays(4096))
    work = meet(ringmpi.Mask.full().resolve(4096, 4096), range(4096), range(4096))
    with pytest.raises(ZeroDivisionError, match="of the poll"):
        get_backend("native", threads=2).attend(q, k, v, work, Scoring(0.125), poll=poll)
    assert len(calls) == 1
