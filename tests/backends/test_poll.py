"""While a kernel runs, its caller may look at its messages: often enough, from its own thread, at no cost in bits."""

import threading
import time

import numpy as np
import pytest

from ringmpi import Mask
from ringmpi.backends.numpy import pace
from ringmpi.backends.numpy.attend import NumpyBackend
from ringmpi.core.gradients import Gradients, Saved
from ringmpi.core.partial import empty_partial
from ringmpi.core.scoring import Scoring
from tests.backends.dense import arrays, inputs
from tests.backends.meetings import meet_all
from tests.backends.natives import ISAS, native

LENGTH, HEADS = 1536, 4
MEETING = meet_all(Mask.full(), (LENGTH, LENGTH), [range(LENGTH)], [range(LENGTH)])
MOST_A_SECOND = 2000


@pytest.fixture(
    params=[("numpy", 1), ("numpy", 3), *((isa, threads) for isa in ISAS[:1] for threads in (1, 3))], ids=str
)
def kernel(request):
    name, threads = request.param
    return NumpyBackend(threads=threads) if name == "numpy" else native(name, threads)


@pytest.fixture(params=["attend", "attend_backward"])
def call(request, kernel):
    """A kernel call of at least 10 ms -> (function of poll that runs it, the arrays that it adds to)."""
    rng = np.random.default_rng(1)
    q, k, v = inputs(rng, MEETING, (1, HEADS, 1, 64, 64))
    if request.param == "attend":
        partial = empty_partial(1, HEADS, LENGTH, 64, np.dtype("f4"))
        return lambda poll: kernel.attend(q, k, v, MEETING.work, Scoring(0.1), into=partial, poll=poll), arrays(partial)
    saved = Saved(q, np.full(q.shape[:3], 9, np.float32), np.zeros(q.shape[:3], np.float32))
    sums = tuple(map(np.zeros_like, (q, k, v)))
    into = Gradients(*sums, np.zeros(HEADS))
    return lambda poll: kernel.attend_backward(q, k, v, saved, MEETING.work, Scoring(0.1), into=into, poll=poll), sums


def test_polls_come_from_the_calling_thread_often_but_not_too_often(call):
    run, _ = call
    looks, threads = [], set()

    def poll():
        looks.append(time.perf_counter())
        threads.add(threading.get_ident())

    start = time.perf_counter()
    run(poll)
    seconds = time.perf_counter() - start
    assert threads == {threading.get_ident()}
    assert 3 < len(looks) < 2 + seconds * MOST_A_SECOND


def test_polling_changes_no_bit(call):
    run, sums = call
    run(None)
    alone = [array.copy() for array in sums]
    for array in sums:
        array[...] = -np.inf if array is sums[0] and array.ndim == 3 else 0
    run(lambda: None)
    assert all(array.tobytes() == before.tobytes() for array, before in zip(sums, alone, strict=True))


class LostError(Exception):
    pass


def test_what_a_poll_raises_is_raised_by_the_call_once_its_threads_rest(call):
    run, sums = call

    def poll():
        raise LostError

    with pytest.raises(LostError):
        run(poll)
    left = [array.copy() for array in sums]
    time.sleep(0.05)
    assert all(array.tobytes() == before.tobytes() for array, before in zip(sums, left, strict=True))
    run(lambda: None)  # and the backend goes on working


def test_pauses_between_polls_are_counted_from_the_end_of_the_last_one(monkeypatch):
    now, looks = 0.0, []
    monkeypatch.setattr(pace, "perf_counter", lambda: now)

    def poll():
        nonlocal now
        looks.append(now)
        now += 10 * pace.PERIOD_SECONDS  # a large message had come

    often = pace.paced(poll)
    for _ in range(8):
        often()
        now += pace.PERIOD_SECONDS / 2
    assert looks == pytest.approx([pace.PERIOD_SECONDS * n for n in (0, 11, 22, 33)])
